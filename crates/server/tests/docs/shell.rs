//! One page in one shell.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::page::Page;
use crate::places::Places;
use crate::upstream::Upstream;

/// The time for a page. They take seconds; a loaded machine may take longer.
const TIME: Duration = Duration::from_secs(240);
/// How often to look whether the shell has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How many lines of the output a failure shows.
const SHOWN: usize = 40;

/// What every shell has before the page begins.
///
/// `redrive serve` and `redrive gateway` run in the background from the moment they listen, as in a terminal of their
/// own; the same command again stops the first, and so does `stop_background serve`. `cargo run --release --` is the
/// built program. Other commands of cargo and of system programs are not run but listed. An HTTP error fails.
const PRELUDE: &str = r#"
redrive() {
    local -; set +x
    case "${1-}" in
        serve | gateway) start_in_background "$@" ;;
        demo) case "$*" in *--for*) command redrive "$@" ;; *) command redrive "$@" --for 2s ;; esac ;;
        *) command redrive "$@" ;;
    esac
}
start_in_background() {
    if [ -e ".$1.pid" ]; then stop_background "$1"; fi
    command redrive "$@" >".$1.log" 2>&1 &
    echo $! >".$1.pid"
    disown $!
    until grep -q 'listening on' ".$1.log"; do
        kill -0 "$(cat ".$1.pid")" 2>/dev/null || { cat ".$1.log" >&2; return 1; }
        sleep 0.02
    done
}
stop_background() {
    local - process; set +x
    process=$(cat ".$1.pid")
    rm ".$1.pid"
    kill "$process"
    while kill -0 "$process" 2>/dev/null; do sleep 0.02; done
}
cargo() {
    local -; set +x
    case "$*" in
        "run --release -- "*) shift 3; redrive "$@" ;;
        *) not_run cargo "$@" ;;
    esac
}
not_run() { echo "$*" >>.not-run; }
for program in apt-get docker podman sudo systemctl; do eval "$program() { not_run $program \"\$@\"; }"; done
curl() { command curl --fail-with-body --no-progress-meter "$@"; }
PS4='+ $LINENO: '
"#;

/// The settings of a page that has none of its own.
const SETTINGS: &str = "[queues.orders.pull]\n[queues.mails.pull]\n";

/// Commands that need a store.
const OPERATING: [&str; 14] = [
    "audit",
    "backup",
    "dead",
    "doctor",
    "event",
    "failing",
    "job",
    "key",
    "ledger",
    "nodes",
    "publish",
    "quarantine",
    "queue",
    "tail",
];

/// Runs a page, and returns its time or what went wrong.
pub(crate) fn run(page: &Page) -> Result<Duration, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let places = Places::find(at, &page.script);
    let _upstream = page.script.contains(":8080").then(|| Upstream::start(places.port(8080)));
    // A terminal has its own for each; here a page's lines run in one shell.
    let script = places.put_into(&page.script).replace("redrive serve &\n", "redrive serve\n");
    let mut prelude = format!("{PRELUDE}REDRIVE_URL=http://127.0.0.1:{}\n", places.port(7070));
    std::fs::write(at.join("redrive.toml"), SETTINGS).expect("settings");
    if needs_server(&script) {
        prelude.push_str("redrive serve\n");
    }
    prelude.push_str("set -x\n");
    let output = at.join(".output");
    let began = Instant::now();
    let mut shell = start(at, &places, &[(".prelude", &prelude), (".script", &script)], &output);
    let ended = wait(&mut shell, began);
    // What the page has started in the background, too.
    let group = Pid::from_raw(i32::try_from(shell.id()).expect("a process id")).expect("a process id");
    let _ = kill_process_group(group, Signal::KILL);
    let _ = shell.wait();
    if ended == Some(true) {
        let not_run = std::fs::read_to_string(at.join(".not-run")).unwrap_or_default();
        not_run.lines().for_each(|line| eprintln!("docs: not run: {}: {line}", page.name));
        return Ok(began.elapsed());
    }
    let said = std::fs::read(&output).unwrap_or_default();
    Err(told(page, &String::from_utf8_lossy(&said), ended.is_none()))
}

/// Whether it uses a server without starting one.
fn needs_server(script: &str) -> bool {
    let commands = || script.lines().map(str::trim_start);
    let starts = commands().any(|line| line.starts_with("redrive serve"));
    let operates = commands().any(|line| {
        let verb = line.strip_prefix("redrive ").and_then(|rest| rest.split_whitespace().next());
        verb.is_some_and(|verb| OPERATING.contains(&verb))
            || line.contains("/v1/")
            || line.contains("$REDRIVE_URL")
    });
    operates && !starts && !commands().any(|line| line.starts_with("redrive gateway"))
}

fn start(at: &Path, places: &Places, files: &[(&str, &str)], output: &Path) -> Child {
    for (name, text) in files {
        std::fs::write(at.join(name), text).expect("a script");
    }
    let programs = at.join(".programs");
    std::fs::create_dir(&programs).expect("a folder");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_redrive"), programs.join("redrive")).expect("a link");
    let path = std::env::var("PATH").unwrap_or_default();
    let output = std::fs::File::create(output).expect("a file");
    let mut shell = Command::new("bash");
    shell.args(["-eu", ".script"]).current_dir(at).env_clear();
    shell.env("PATH", format!("{}:{path}", programs.display())).env("BASH_ENV", at.join(".prelude"));
    shell.env("HOME", at).env("USER", "ada").env("LANG", "C.UTF-8").env("no_proxy", "*");
    shell.env("REDRIVE_SERVER_LISTEN", format!("127.0.0.1:{}", places.port(7070)));
    shell.stdin(Stdio::null()).stderr(output.try_clone().expect("a file")).stdout(output).process_group(0);
    shell.spawn().expect("bash starts")
}

/// Whether the shell ended well; nothing if it did not end in time.
fn wait(shell: &mut Child, began: Instant) -> Option<bool> {
    while began.elapsed() < TIME {
        if let Some(status) = shell.try_wait().expect("a shell") {
            return Some(status.success());
        }
        std::thread::sleep(LOOK);
    }
    None
}

/// The line that failed, which is the last one that was traced, and the end of the output.
fn told(page: &Page, said: &str, is_late: bool) -> String {
    let lines: Vec<_> = said.lines().collect();
    let traced = lines.iter().filter_map(|line| line.strip_prefix("+ ")?.split_once(": "));
    let of_page = |(number, _): &(&str, &str)| {
        let index = number.parse::<usize>().ok()?.checked_sub(1)?;
        page.script.lines().nth(index).filter(|line| !line.is_empty())?;
        Some(index + 1)
    };
    let last = traced.filter_map(|it| Some((of_page(&it)?, it.1))).next_back();
    let (line, command) = last.unwrap_or((0, "the shell itself"));
    let what = if is_late { format!("did not end within {} s", TIME.as_secs()) } else { "failed".to_owned() };
    let end = lines[lines.len().saturating_sub(SHOWN)..].join("\n  ");
    format!("{}:{line}: `{command}` {what}\n  {end}", page.name)
}
