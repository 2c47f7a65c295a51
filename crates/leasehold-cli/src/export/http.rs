//! The HTTP server for `GET /metrics`.
//!
//! It serves one request per connection. The time for a request's header and
//! the number of connections are limited. A new connection replaces the oldest
//! one that waits for its client, so clients that send or read nothing do not
//! keep others out.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::scrape::Scraper;
use super::text;

/// The number of open connections.
const MAX_CONNECTIONS: usize = 64;

/// The size of a request's header. Requests of Prometheus have less than 1 KiB.
const MAX_HEADER: usize = 8 * 1024;

/// The limit for reading a request's header.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The limit for a connection. An inspection of a million locks takes half a
/// minute.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// The pause after a failed `accept`, as when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the metrics of `scraper`.
pub(super) async fn serve(listener: &TcpListener, scraper: Arc<Scraper>) -> Infallible {
    let mut connections = Connections::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if connections.make_room() {
            let inspecting = Arc::new(AtomicBool::new(false));
            let connection = serve_connection(stream, scraper.clone(), inspecting.clone());
            let task = tokio::spawn(connection).abort_handle();
            connections.open.push_back(Connection { task, inspecting });
        }
    }
}

/// The open connections, oldest first.
#[derive(Default)]
struct Connections {
    open: VecDeque<Connection>,
}

struct Connection {
    task: AbortHandle,
    /// Whether the client waits for us, rather than we for the client.
    inspecting: Arc<AtomicBool>,
}

impl Connections {
    /// Closes the oldest connection that waits for its client if there are too
    /// many. Returns false if there is no such connection.
    fn make_room(&mut self) -> bool {
        self.open
            .retain(|connection| !connection.task.is_finished());
        if self.open.len() < MAX_CONNECTIONS {
            return true;
        }
        let is_waiting = |connection: &Connection| !connection.inspecting.load(Ordering::Relaxed);
        let oldest = self.open.iter().position(is_waiting);
        let oldest = oldest.and_then(|index| self.open.remove(index));
        oldest
            .inspect(|connection| connection.task.abort())
            .is_some()
    }
}

async fn serve_connection(stream: TcpStream, scraper: Arc<Scraper>, inspecting: Arc<AtomicBool>) {
    let service = service_fn(|request| {
        let scraper = scraper.clone();
        let inspecting = inspecting.clone();
        async move {
            inspecting.store(true, Ordering::Relaxed);
            let response = respond(&request, &scraper).await;
            inspecting.store(false, Ordering::Relaxed);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        // A client may close its side after the request.
        .half_close(true)
        .max_buf_size(MAX_HEADER)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    // A client that leaves or is too slow receives no response.
    let _ = timeout(CONNECTION_TIMEOUT, connection).await;
}

async fn respond(request: &Request<Incoming>, scraper: &Scraper) -> Response<String> {
    if request.uri().path() != "/metrics" {
        return refusal(StatusCode::NOT_FOUND);
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED);
        set(&mut response, ALLOW, "GET, HEAD");
        return response;
    }
    let mut response = Response::new(scraper.metrics().await.to_string());
    set(&mut response, CONTENT_TYPE, text::CONTENT_TYPE);
    response
}

fn refusal(status: StatusCode) -> Response<String> {
    let mut response = Response::new(format!("{status}\n"));
    *response.status_mut() = status;
    set(&mut response, CONTENT_TYPE, "text/plain; charset=utf-8");
    response
}

fn set(response: &mut Response<String>, name: HeaderName, value: &'static str) {
    let value = hyper::header::HeaderValue::from_static(value);
    response.headers_mut().insert(name, value);
}
