//! A client that costs little: requests written as bytes, answers read no further than they must be.

use std::time::{Duration, Instant};

use redrive_benches::turn::{WARM_UP, id, payload};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Events a second, published by so many connections in requests of `batch`.
pub(crate) async fn posts(
    address: &str,
    connections: usize,
    batch: usize,
    time: Duration,
) -> Result<f64, String> {
    let start = Instant::now() + WARM_UP;
    let end = start + time;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..connections {
        let address = address.to_owned();
        tasks.spawn(async move { connection(&address, number, batch, start, end).await });
    }
    let mut events = 0_u64;
    while let Some(done) = tasks.join_next().await {
        events += done.map_err(|error| error.to_string())??;
    }
    #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52 events")]
    Ok(events as f64 / time.as_secs_f64())
}

/// Publishes one request after another; the events that were answered within the time.
async fn connection(
    address: &str,
    number: usize,
    batch: usize,
    start: Instant,
    end: Instant,
) -> Result<u64, String> {
    let text = |error: std::io::Error| format!("{address}: {error}");
    let mut stream = TcpStream::connect(address).await.map_err(text)?;
    stream.set_nodelay(true).map_err(text)?;
    let (mut answer, mut counted, mut turn) = (Vec::new(), 0, 0_u64);
    loop {
        let body = body(number, turn, batch);
        turn += 1;
        let request = format!(
            "POST /v1/queues/orders/events HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.map_err(text)?;
        read(&mut stream, &mut answer).await?;
        let now = Instant::now();
        if now >= end {
            return Ok(counted);
        }
        if now >= start {
            counted += u64::try_from(batch).unwrap_or_default();
        }
    }
}

fn body(connection: usize, turn: u64, batch: usize) -> String {
    let first = (u64::try_from(connection).unwrap_or_default() << 40) + turn * 1000;
    let event =
        |at: u64| format!("{{\"id\":\"{}\",\"payload\":\"{}\"}}", id(first + at), payload(first + at));
    if batch == 1 {
        return event(0);
    }
    let events: Vec<String> = (0..u64::try_from(batch).unwrap_or_default()).map(event).collect();
    format!("{{\"events\":[{}]}}", events.join(","))
}

/// Reads one answer, which has to be a 202.
async fn read(stream: &mut TcpStream, answer: &mut Vec<u8>) -> Result<(), String> {
    answer.clear();
    loop {
        let count = stream.read_buf(answer).await.map_err(|error| error.to_string())?;
        if count == 0 {
            return Err("the server hung up".to_owned());
        }
        let Some(head) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
        if !text.starts_with("http/1.1 202") {
            return Err(format!("the server says {}", String::from_utf8_lossy(answer)));
        }
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
        let length: usize = length.ok_or("an answer without a length")?;
        if answer.len() >= head + 4 + length {
            return Ok(());
        }
    }
}
