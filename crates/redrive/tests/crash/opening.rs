//! Files that this user may not read or write. Root may do everything, so a child without that right opens them.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::{SECOND, child, file};

/// Opens the file, and reports the result on stderr.
pub(crate) async fn run(folder: &Path) {
    match redrive::Redrive::open(&format!("sqlite:{}", file(folder).display())).await {
        Ok(_) => eprintln!("it was opened"),
        Err(error) => eprintln!("{error}"),
    }
}

/// The report of a child that is bound by permissions.
fn opened(folder: &Path) -> String {
    let plain = child("visitor", folder);
    let mut command = Command::new("setpriv");
    command
        .arg("--bounding-set=-dac_override,-dac_read_search")
        .arg(plain.get_program())
        .args(plain.get_args());
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let is_root = std::fs::read_to_string("/proc/self/status").is_ok_and(|text| text.contains("\nUid:\t0"));
    let mut command = if is_root { command } else { plain };
    String::from_utf8(command.output().unwrap().stderr).unwrap()
}

#[tokio::test]
async fn what_may_not_be_read_or_written_says_what_to_do() {
    let cases = [
        // The mode of the file, of its folder, the report.
        (0o600, 0o700, "it was opened"),
        (0o400, 0o700, "it is read-only; make the file and its folder writable"),
        (0o000, 0o700, "let this user read and write the file and its folder"),
        (0o600, 0o500, "writable"),
        (0o600, 0o000, "let this user"),
    ];
    for (of_file, of_folder, said) in cases {
        let folder = tempfile::tempdir().unwrap();
        let redrive = crate::open(folder.path()).await;
        redrive.shutdown(SECOND).await.unwrap();
        for side in ["-owner", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{side}", file(folder.path()).display()));
        }
        let set = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        set(&file(folder.path()), of_file);
        set(folder.path(), of_folder);
        let words = opened(folder.path());
        set(folder.path(), 0o700);
        assert!(words.contains(said), "{of_file:o} in {of_folder:o}: {words}");
    }
}
