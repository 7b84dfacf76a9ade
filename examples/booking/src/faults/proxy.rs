//! A TCP proxy that cuts connections at the worst moments.
//!
//! It stands before every program, at a stable address while the program behind it dies and comes back elsewhere. A
//! cut is ordered beforehand and applied at the next matching chunk: the request never arrives, it arrives but the
//! client is gone, the response is lost although the effect happened, or half of it is.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::fault_counts::FaultCounts;

/// Maximum bytes read at once. Requests and responses here are smaller.
const PIECE: usize = 16 << 10;

/// Where a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The request does not get through.
    Request,
    /// It arrives, but the client is gone.
    HangUp,
    /// The answer does not, and it was a good one: the effect is there.
    Answer,
    /// Half of the answer does.
    HalfAnswer,
}

impl Cut {
    pub(crate) const ALL: [Self; 4] = [Self::Request, Self::HangUp, Self::Answer, Self::HalfAnswer];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "before the effect",
            Self::HangUp => "after the request",
            Self::Answer => "after the effect, before the answer",
            Self::HalfAnswer => "in the middle of the answer",
        }
    }
}

/// A proxy. Ends with the program.
#[derive(Debug, Clone)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The name of the program behind it.
    name: &'static str,
    target: watch::Sender<Option<SocketAddr>>,
    /// The ordered cuts, each with the number of matching chunks to let through first.
    ordered: Mutex<VecDeque<(u32, Cut)>>,
    tally: Arc<FaultCounts>,
}

impl Proxy {
    pub(crate) async fn start(name: &'static str, tally: Arc<FaultCounts>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let address = listener.local_addr()?;
        let target = watch::Sender::new(None);
        let inner = Arc::new(Inner { name, target, ordered: Mutex::default(), tally });
        let serving = Arc::clone(&inner);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let inner = Arc::clone(&serving);
                tokio::spawn(async move { inner.join(client).await });
            }
        });
        Ok(Self { address, inner })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The program is there now, or gone.
    pub(crate) fn aim(&self, target: Option<SocketAddr>) {
        self.inner.target.send_replace(target);
    }

    /// Orders a cut, after a number of matching chunks.
    pub(crate) fn order(&self, after: u32, cut: Cut) {
        self.inner.ordered().push_back((after, cut));
    }

    /// Cancels all ordered cuts.
    pub(crate) fn calm(&self) {
        self.inner.ordered().clear();
    }
}

impl Inner {
    fn ordered(&self) -> MutexGuard<'_, VecDeque<(u32, Cut)>> {
        self.ordered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the connection is cut at a piece that fits these.
    fn cuts(&self, fitting: &[Cut]) -> Option<Cut> {
        let mut ordered = self.ordered();
        let (after, cut) = ordered.front_mut().filter(|(_, cut)| fitting.contains(cut))?;
        if *after > 0 {
            *after -= 1;
            return None;
        }
        let cut = *cut;
        ordered.pop_front();
        drop(ordered);
        self.tally.count(format!("connection to {} cut {}", self.name, cut.as_str()));
        Some(cut)
    }

    /// Connects a client with the program, until one of them ends or the connection is cut. Dropped connections are
    /// closed.
    async fn join(&self, mut client: TcpStream) {
        let target = *self.target.borrow();
        let Some(target) = target else { return };
        let Ok(mut program) = TcpStream::connect(target).await else { return };
        let (mut asked, mut answered) = (vec![0; PIECE], vec![0; PIECE]);
        loop {
            let passed = tokio::select! {
                read = client.read(&mut asked) => match read {
                    Ok(length @ 1..) => match self.cuts(&[Cut::Request, Cut::HangUp]) {
                        None => program.write_all(&asked[..length]).await,
                        Some(Cut::HangUp) => {
                            let _ = program.write_all(&asked[..length]).await;
                            return;
                        }
                        Some(_) => return,
                    },
                    _ => return,
                },
                read = program.read(&mut answered) => match read {
                    Ok(length @ 1..) => {
                        let is_good = answered[..length].starts_with(b"HTTP/1.1 2");
                        match is_good.then(|| self.cuts(&[Cut::Answer, Cut::HalfAnswer])).flatten() {
                            None => client.write_all(&answered[..length]).await,
                            Some(Cut::HalfAnswer) => {
                                let _ = client.write_all(&answered[..length / 2]).await;
                                return;
                            }
                            Some(_) => return,
                        }
                    }
                    _ => return,
                },
            };
            if passed.is_err() {
                return;
            }
        }
    }
}
