//! The story, as a reader sees it.

use std::process::Command;

#[test]
fn the_story_adds_up() {
    let told = Command::new(env!("CARGO_BIN_EXE_example-booking")).output().expect("the program");
    let text = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success(), "{}\n{text}\n{}", told.status, String::from_utf8_lossy(&told.stderr));
    // Nine intents of eight guests are booked; Gus's is refused.
    let all = text.lines().find(|line| line.starts_with("all ")).expect("a table");
    assert_eq!(all.split_whitespace().collect::<Vec<_>>(), ["all", "9", "9", "9", "9"], "{text}");
    assert!(text.contains("409 {\"code\":\"cabin-taken\""), "{text}");
}
