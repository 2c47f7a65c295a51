//! A minimal HTTP/1.1 server for `GET /metrics`.
//!
//! It serves one request per connection. The size of a request, the time of
//! each step and the number of connections are limited, so that a faulty client
//! delays others for a few seconds at most.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::scrape::Scraper;
use super::text::CONTENT_TYPE;

/// The number of connections that are served at a time. Others wait.
const MAX_CONNECTIONS: usize = 64;

/// The size of a request without a body. Requests of Prometheus have less than
/// 1 KiB.
const MAX_REQUEST: usize = 8 * 1024;

/// The size of the rest of a request that is read and ignored.
const MAX_IGNORED: u64 = 1024 * 1024;

/// The limit for reading a request, and for sending a response.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after a failed `accept`, as when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the metrics of `scraper`.
pub(super) async fn serve(listener: &TcpListener, scraper: Arc<Scraper>) -> Infallible {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let permit = connections.clone().acquire_owned().await;
        let permit = permit.expect("BUG: the semaphore is closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let scraper = scraper.clone();
                tokio::spawn(async move {
                    serve_connection(stream, &scraper).await;
                    drop(permit);
                });
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn serve_connection(mut stream: TcpStream, scraper: &Scraper) {
    let request = match timeout(STEP_TIMEOUT, read_request(&mut stream)).await {
        Ok(Ok(request)) => request,
        // The client has closed the connection.
        Ok(Err(_)) => return,
        Err(_) => Request::Invalid(Status::RequestTimeout),
    };
    let response = match request {
        Request::Metrics { head } => {
            let metrics = scraper.metrics().await;
            response(Status::Ok, CONTENT_TYPE, &metrics, !head)
        }
        Request::Invalid(status) => {
            let text = format!("{}\n", status.line());
            response(status, "text/plain; charset=utf-8", &text, true)
        }
    };
    // A client that does not take the response receives none.
    let _ = timeout(STEP_TIMEOUT, send(&mut stream, &response)).await;
}

/// What a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// The metrics; for `HEAD` without the body.
    Metrics {
        head: bool,
    },
    Invalid(Status),
}

impl Request {
    /// Parses a request line.
    fn parse(line: &[u8]) -> Self {
        let words = std::str::from_utf8(line).unwrap_or_default();
        let words: Vec<_> = words.trim_end_matches('\r').split(' ').collect();
        let [method, target, "HTTP/1.0" | "HTTP/1.1"] = words[..] else {
            return Self::Invalid(Status::BadRequest);
        };
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        match (path, method) {
            ("/metrics", "GET" | "HEAD") => Self::Metrics {
                head: method == "HEAD",
            },
            ("/metrics", _) => Self::Invalid(Status::MethodNotAllowed),
            _ => Self::Invalid(Status::NotFound),
        }
    }
}

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    TooLarge,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::RequestTimeout => "408 Request Timeout",
            Self::TooLarge => "431 Request Header Fields Too Large",
        }
    }
}

/// Reads a request up to the empty line after its header.
async fn read_request(stream: &mut TcpStream) -> io::Result<Request> {
    let mut received = Vec::with_capacity(1024);
    loop {
        if received.len() > MAX_REQUEST {
            return Ok(Request::Invalid(Status::TooLarge));
        }
        if stream.read_buf(&mut received).await? == 0 {
            return match received.is_empty() {
                true => Err(io::ErrorKind::UnexpectedEof.into()),
                false => Ok(Request::Invalid(Status::BadRequest)),
            };
        }
        if ends_header(&received) {
            let line = received.split(|byte| *byte == b'\n').next();
            return Ok(Request::parse(line.unwrap_or_default()));
        }
    }
}

/// Returns whether an empty line was received.
fn ends_header(received: &[u8]) -> bool {
    let mut lines = received.split(|byte| *byte == b'\n');
    // The last line is not complete yet.
    lines.next_back();
    lines.any(|line| line.is_empty() || line == b"\r")
}

fn response(status: Status, content_type: &str, body: &str, with_body: bool) -> String {
    let allow = match status {
        Status::MethodNotAllowed => "Allow: GET, HEAD\r\n",
        _ => "",
    };
    format!(
        "HTTP/1.1 {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n{}",
        status.line(),
        body.len(),
        if with_body { body } else { "" },
    )
}

/// Sends a response, and closes the connection.
async fn send(stream: &mut TcpStream, response: &str) -> io::Result<()> {
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await?;
    // A connection that is closed with unread data is reset, and the client may
    // not receive the response.
    let mut rest = stream.take(MAX_IGNORED);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_line_is_parsed() {
        let metrics = |head| Request::Metrics { head };
        let invalid = Request::Invalid;
        for (line, expected) in [
            ("GET /metrics HTTP/1.1\r", metrics(false)),
            ("GET /metrics HTTP/1.0", metrics(false)),
            ("GET /metrics?name[]=x HTTP/1.1\r", metrics(false)),
            ("HEAD /metrics HTTP/1.1\r", metrics(true)),
            (
                "POST /metrics HTTP/1.1\r",
                invalid(Status::MethodNotAllowed),
            ),
            ("GET / HTTP/1.1\r", invalid(Status::NotFound)),
            ("GET /metricsx HTTP/1.1\r", invalid(Status::NotFound)),
            ("GET /metrics", invalid(Status::BadRequest)),
            ("GET  /metrics HTTP/1.1\r", invalid(Status::BadRequest)),
            ("PRI * HTTP/2.0\r", invalid(Status::BadRequest)),
            ("", invalid(Status::BadRequest)),
        ] {
            assert_eq!(Request::parse(line.as_bytes()), expected, "{line}");
        }
        let no_text = Request::parse(b"GET /\xff HTTP/1.1");
        assert_eq!(no_text, invalid(Status::BadRequest));
    }

    #[test]
    fn header_ends_with_an_empty_line() {
        for (received, expected) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("GET / HTTP/1.1\n\n", true),
            ("GET / HTTP/1.1\r\n\r\nbody", true),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r", false),
            ("GET / HTTP/1.1\r\n", false),
            ("", false),
        ] {
            assert_eq!(ends_header(received.as_bytes()), expected, "{received:?}");
        }
    }
}
