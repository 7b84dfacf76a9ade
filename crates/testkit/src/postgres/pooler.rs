//! A private PgBouncer in transaction mode, in front of a server.
//!
//! Every transaction has another session: state that a client leaves in one, such as a prepared statement, is
//! not there in the next. It has few sessions, so that this happens soon. It ends with the test process, as a
//! server does.

use std::io::{BufRead, BufReader, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};

use super::Server;

/// Its message when it is ready.
const READY: &str = "process up";
/// Where Debian keeps it, for users without administrators' programs on the path.
const PLACES: [&str; 2] = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"];

/// Holds it: ends it when the input ends.
const HOLDER: &str = r#"
exec 3<&0
"$@" </dev/null &
pooler=$!
( cat <&3 >/dev/null; kill -TERM $pooler 2>/dev/null ) &
watch=$!
wait $pooler
kill $watch 2>/dev/null
"#;

/// A PgBouncer.
#[derive(Debug)]
pub struct Pooler {
    folder: PathBuf,
    child: Child,
    /// Ends it when it is dropped.
    input: Option<ChildStdin>,
}

impl Pooler {
    /// Starts one in front of a server, with this many sessions.
    ///
    /// # Errors
    /// If there is none here, or it does not start.
    pub fn start(server: &Server, sessions: u32) -> Result<Self> {
        let program = PLACES.iter().map(Path::new).find(|path| path.exists());
        let program = program
            .ok_or_else(|| std::io::Error::other("there is no PgBouncer here; run `cargo xtask install`"))?;
        let name = super::a_name("pooler");
        let folder = server.folder.join(&name);
        std::fs::create_dir_all(&folder)?;
        if let Some(user) = &server.user {
            std::os::unix::fs::chown(&folder, Some(user.uid), Some(user.gid))?;
        }
        let shown = folder.display();
        let config = format!(
            "[databases]\n* = host={} port=5432 user=redrive\n[pgbouncer]\nlisten_port = 5432\nlisten_addr =\n\
             unix_socket_dir = {shown}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {sessions}\n\
             max_client_conn = 500\n",
            server.folder.display()
        );
        let config = server.give(&format!("{name}/pgbouncer.ini"), &config)?;
        let mut holder = server.command_of(Path::new("sh"));
        holder.args(["-c", HOLDER, "sh"]).arg(program).arg(config);
        let mut child = holder.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let (input, talk) = (child.stdin.take(), child.stderr.take().unwrap());
        let mut lines = BufReader::new(talk).lines().map_while(Result::ok);
        let mut said = Vec::new();
        loop {
            let Some(line) = lines.next() else {
                return Err(std::io::Error::other(format!("PgBouncer did not start: {}", said.join("\n"))));
            };
            if line.contains(READY) {
                break;
            }
            said.push(line);
        }
        // Keep reading its output, so that it never blocks on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { folder, child, input })
    }

    /// Its URL, for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://redrive@localhost/postgres?host={}", self.folder.display())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
