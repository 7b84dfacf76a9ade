//! Help, completions and the manual.

use crate::program::run;

#[tokio::test]
async fn every_command_has_help_completions_and_a_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = async |args: &[&str]| run(folder.path(), args, &[], "").await;
    for (shell, sign) in
        [("bash", "complete -F"), ("zsh", "#compdef redrive"), ("fish", "complete -c redrive")]
    {
        let script = run(&["completions", shell]).await.fine();
        assert!(script.out.contains(sign) && script.out.contains("quarantine"), "{shell}");
    }
    assert_eq!(run(&["completions", "tcsh"]).await.code, Some(2));
    let page = run(&["man"]).await.fine();
    assert!(page.out.contains(".TH redrive 1") && page.out.contains("quarantine"), "{}", page.out);
    let page = run(&["man", "dead", "redrive"]).await.fine();
    assert!(page.out.contains("canary"), "{}", page.out);
    assert_eq!(run(&["man", "nothing"]).await.err, "redrive: there is no command `nothing`\n");
    let groups = [
        (
            "dead",
            &["groups", "ls", "show", "plan", "redrive", "edit", "discard", "restore", "export", "import"][..],
        ),
        ("job", &["ls", "show", "watch", "pause", "resume", "cancel"]),
        ("event", &["ls", "show", "retry-now", "skip", "kill"]),
        ("key", &["show", "park", "unpark", "skip-head"]),
        ("queue", &["ls", "show", "pause", "resume", "reroute"]),
        ("quarantine", &["add", "ls", "rm"]),
        ("audit", &["ls", "export", "verify"]),
    ];
    for (group, verbs) in groups {
        let help = run(&[group, "--help"]).await.fine();
        for verb in verbs {
            assert!(
                help.out.lines().any(|line| line.trim_start().starts_with(verb)),
                "{group} {verb}: {}",
                help.out
            );
        }
    }
    let misspelt = run(&["dead", "redriv"]).await;
    assert!(misspelt.code == Some(2) && misspelt.err.contains("redrive"), "{misspelt:?}");
}

#[tokio::test]
async fn a_demo_of_no_time_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for none in ["0s", "0ms", "0h 0s"] {
        let said = run(folder.path(), &["demo", "--for", none], &[], "").await;
        assert!(said.code == Some(2) && said.err.contains("at least a few seconds"), "{none}: {said:?}");
    }
}

/// What can be checked is wrong before a server is started with it.
#[tokio::test]
async fn a_check_tells_what_cannot_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = async |settings: &str, variables: &[(&str, &str)]| {
        std::fs::write(folder.path().join("redrive.toml"), settings).expect("a file");
        run(folder.path(), &["check"], variables, "").await
    };
    check("[queues.a.pull]\n", &[]).await.fine();
    let said = check("[queues.a]\nconcurrency = 3\npull = {}\n", &[]).await.fine();
    assert!(said.err.starts_with("redrive: queues.a: concurrency: no effect"), "{said:?}");
    for (settings, told) in [
        ("quota.rate = { per_second = 0, burst = 0 }\n", "redrive: quota.rate: "),
        ("store.address = \"postgres:\"\n", "redrive: store.address "),
        ("secrets.key_file = \"nowhere.key\"\n", "nowhere.key"),
    ] {
        let said = check(settings, &[]).await;
        assert!(said.code == Some(1) && said.err.contains(told), "{said:?}");
    }
    let said = check("", &[("REDRIVE_SERVER_BODY_MAX", "abc")]).await;
    assert!(said.code == Some(1) && said.err.starts_with("redrive: REDRIVE_SERVER_BODY_MAX: "), "{said:?}");
}
