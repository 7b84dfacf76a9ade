//! A proxy between a program and its PostgreSQL, which cuts the connection at the worst moment.
//!
//! If the reply to a COMMIT is lost, the outcome is unknown to the client: the transaction may have happened
//! or not. The proxy makes either on request: [`Cut::Before`] loses the COMMIT on its way to the server,
//! [`Cut::After`] loses the reply. A COMMIT may also still happen later: [`Cut::Late`] holds it back until
//! the test has it delivered.
//!
//! A statement that calls a function whose name ends with `_fast` is a transaction of its own, and counts as
//! its COMMIT.
//!
//! The proxy can also simulate a network failure: [`Weather::Torn`] refuses all connections,
//! [`Weather::Hushed`] lets nothing through, and data sent meanwhile arrives when it is over.

use std::collections::BTreeSet;
use std::io::{Read, Result, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};

use super::Server;

/// The end of a simple query that commits; other statements may come before it.
const COMMIT: &[u8] = b"COMMIT\0";
/// The same if another statement follows it.
const MORE: &[u8] = b"COMMIT; ";
/// A part of the text of a statement that commits by itself.
const FAST: &[u8] = b"_fast(";
/// The message in which a client asks for TLS, before the first one: the bytes after its length.
const ASKS_FOR_TLS: &[u8] = &[0x04, 0xd2, 0x16, 0x2f];
/// The longest message that is inspected; longer ones have no COMMIT and no name of a statement at the front.
const LOOKED_AT_MAX: usize = 1 << 16;
/// The name of the socket that a client looks for.
const SOCKET: &str = ".s.PGSQL.5432";

/// Where the connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The COMMIT does not reach the server, which rolls back.
    Before,
    /// The server commits, and its reply is lost.
    After,
    /// The COMMIT is on its way until [`Proxy::deliver`] is called.
    Late,
}

/// The state of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Weather {
    /// Everything arrives.
    #[default]
    Fair,
    /// Nothing arrives, and neither side notices. Later it arrives.
    Hushed,
    /// Connections are cut, and new ones refused.
    Torn,
}

/// The state of the network, with threads that wait for it to recover.
#[derive(Debug, Default)]
struct Sky {
    weather: Mutex<Weather>,
    changed: Condvar,
}

impl Sky {
    fn set(&self, weather: Weather) {
        *self.weather.lock().unwrap() = weather;
        self.changed.notify_all();
    }

    /// Waits while nothing arrives; returns whether data may pass.
    fn is_open(&self) -> bool {
        let weather = self.weather.lock().unwrap();
        let is_hushed = |weather: &mut Weather| *weather == Weather::Hushed;
        *self.changed.wait_while(weather, is_hushed).unwrap() == Weather::Fair
    }
}

/// The proxy.
#[derive(Debug)]
pub struct Proxy {
    folder: PathBuf,
    state: Arc<Mutex<State>>,
    sky: Arc<Sky>,
}

#[derive(Debug, Default)]
struct State {
    /// The next cut, and the text that its statement must contain.
    next: Option<(Cut, String)>,
    cuts: usize,
    late: Option<Late>,
    is_shut: bool,
    lines: Vec<(UnixStream, UnixStream)>,
}

/// A COMMIT that is held back, and the thread that ends when it was answered.
#[derive(Debug)]
struct Late {
    server: UnixStream,
    said: Vec<u8>,
    answered: Receiver<()>,
}

impl Proxy {
    /// Starts a proxy in front of this server for clients of [`Proxy::url`].
    ///
    /// # Errors
    /// If its socket cannot be made.
    pub fn start(server: &Server) -> Result<Self> {
        let folder = std::env::temp_dir().join(super::a_name(&format!("redrive-px-{}", std::process::id())));
        std::fs::create_dir_all(&folder)?;
        let listener = UnixListener::bind(folder.join(SOCKET))?;
        let behind = server.folder.join(SOCKET);
        let state = Arc::<Mutex<State>>::default();
        let sky = Arc::<Sky>::default();
        let (shared, above) = (Arc::clone(&state), Arc::clone(&sky));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if *above.weather.lock().unwrap() == Weather::Torn {
                    continue;
                }
                // If the server is down, so is the proxy.
                let _ = connect(client, &behind, &shared, &above);
            }
        });
        Ok(Self { folder, state, sky })
    }

    /// Its URL, for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://redrive@localhost/postgres?host={}", self.folder.display())
    }

    /// Cuts the connection of the next client that commits.
    pub fn cut_next(&self, cut: Cut) {
        self.cut_next_with(cut, "");
    }

    /// Cuts the connection of the next client that commits with one statement with this text in it, or in its
    /// values.
    pub fn cut_next_with(&self, cut: Cut, text: &str) {
        self.state.lock().unwrap().next = Some((cut, text.to_owned()));
    }

    /// Delivers the COMMIT that is held back; returns when the server has answered it.
    pub fn deliver(&self) {
        let late = self.state.lock().unwrap().late.take();
        let Late { mut server, said, answered } = late.expect("no COMMIT is on its way");
        // A server that has given up waiting does not receive it either.
        let _ = server.write_all(&said);
        let _ = answered.recv();
    }

    /// Whether new clients are refused from now on.
    pub fn shut(&self, is_shut: bool) {
        self.state.lock().unwrap().is_shut = is_shut;
    }

    /// How many connections were cut at a COMMIT.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.state.lock().unwrap().cuts
    }

    /// Changes the state of the network.
    pub fn turn(&self, weather: Weather) {
        self.sky.set(weather);
        if weather == Weather::Torn {
            self.cut_all();
        }
    }

    /// Cuts all connections now.
    pub fn cut_all(&self) {
        for (client, server) in self.state.lock().unwrap().lines.drain(..) {
            let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.turn(Weather::Torn);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn connect(client: UnixStream, behind: &Path, state: &Arc<Mutex<State>>, sky: &Arc<Sky>) -> Result<()> {
    if state.lock().unwrap().is_shut {
        return Ok(());
    }
    let server = UnixStream::connect(behind)?;
    state.lock().unwrap().lines.push((client.try_clone()?, server.try_clone()?));
    // Whether the next reply of the server is the one to lose.
    let is_lost = Arc::new(Mutex::new(false));
    let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
    let (shared, loses) = (Arc::clone(state), Arc::clone(&is_lost));
    let (above, over) = (Arc::clone(sky), Arc::clone(sky));
    let (ends, answered) = channel();
    std::thread::spawn(move || forward(from_client, to_server, &shared, &loses, answered, &above));
    std::thread::spawn(move || {
        back(server, client, &is_lost, &over);
        drop(ends);
    });
    Ok(())
}

fn forward(
    mut from: UnixStream,
    mut to: UnixStream,
    state: &Mutex<State>,
    loses: &Mutex<bool>,
    answered: Receiver<()>,
    sky: &Sky,
) {
    let mut bytes = [0; 1 << 16];
    let mut talk = Talk::default();
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let said = &bytes[..count];
        if talk.commits(said) {
            let mut state = state.lock().unwrap();
            let cut = state.next.take_if(|(_, text)| has(said, text.as_bytes())).map(|(cut, _)| cut);
            state.cuts += usize::from(cut.is_some());
            match cut {
                None => {}
                Some(Cut::Before) => break,
                Some(Cut::After) => *loses.lock().unwrap() = true,
                Some(Cut::Late) => {
                    *loses.lock().unwrap() = true;
                    state.late = Some(Late { server: to, said: said.to_vec(), answered });
                    let _ = from.shutdown(Shutdown::Both);
                    return;
                }
            }
        }
        if !sky.is_open() || to.write_all(said).is_err() {
            break;
        }
    }
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}

fn has(said: &[u8], text: &[u8]) -> bool {
    text.is_empty() || said.windows(text.len()).any(|part| part == text)
}

/// A client's messages, as far as needed to know when it commits.
#[derive(Default)]
struct Talk {
    /// Whether the first messages, which have no type byte, are over.
    is_begun: bool,
    /// The front of an incomplete message, and how many more bytes of it are to come.
    front: Vec<u8>,
    to_come: usize,
    /// The names of statements that commit by themselves.
    fast: BTreeSet<Vec<u8>>,
}

impl Talk {
    /// Whether the next bytes contain a COMMIT.
    fn commits(&mut self, mut said: &[u8]) -> bool {
        let mut commits = false;
        while !said.is_empty() {
            let head = if self.is_begun { 5 } else { 4 };
            if self.front.len() < head {
                let (now, rest) = said.split_at(said.len().min(head - self.front.len()));
                self.front.extend_from_slice(now);
                said = rest;
                if self.front.len() < head {
                    return commits;
                }
                let length: [u8; 4] = self.front[head - 4..].try_into().unwrap();
                self.to_come = (u32::from_be_bytes(length) as usize).saturating_sub(4);
            }
            let (now, rest) = said.split_at(said.len().min(self.to_come));
            let room = LOOKED_AT_MAX.saturating_sub(self.front.len());
            self.front.extend_from_slice(&now[..now.len().min(room)]);
            (self.to_come, said) = (self.to_come - now.len(), rest);
            if self.to_come == 0 {
                let front = std::mem::take(&mut self.front);
                if self.is_begun {
                    commits |= self.is_commit(front[0], &front[5..]);
                }
                self.is_begun |= front.get(4..) != Some(ASKS_FOR_TLS);
            }
        }
        commits
    }

    fn is_commit(&mut self, kind: u8, text: &[u8]) -> bool {
        let mut words = text.split(|byte| *byte == 0);
        match kind {
            b'Q' => text.ends_with(COMMIT) || text.windows(MORE.len()).any(|part| part == MORE),
            b'P' => {
                let name = words.next().unwrap_or_default().to_vec();
                if text.windows(FAST.len()).any(|part| part == FAST) {
                    self.fast.insert(name);
                }
                false
            }
            b'B' => words.nth(1).is_some_and(|name| self.fast.contains(name)),
            _ => false,
        }
    }
}

fn back(mut from: UnixStream, mut to: UnixStream, is_lost: &Mutex<bool>, sky: &Sky) {
    let mut bytes = [0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        // The server replies when it has committed.
        if *is_lost.lock().unwrap() || !sky.is_open() || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}
