//! A web service with locks in the handlers. It holds no lock after it exits.
//!
//! ```sh
//! cargo run -p examples --bin axum -- 127.0.0.1:3000
//! curl -X POST http://127.0.0.1:3000/orders/7/pay
//! curl -X POST http://127.0.0.1:3000/report
//! ```
//!
//! On Ctrl-C or SIGTERM, the service accepts no more connections, finishes its
//! requests, and then shuts the client down. That releases what is still held,
//! such as the archiver's lock.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use leasehold::{Client, Token};
use tokio::net::TcpListener;

/// How long a request waits for a lock.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long the exit waits for releases. Together with the longest request, it
/// must be shorter than the time after which the platform kills the process.
const SHUTDOWN: Duration = Duration::from_secs(5);

type BoxError = Box<dyn Error + Send + Sync>;

/// The response of a handler: text, or a status and a reason.
type Response = Result<String, (StatusCode, String)>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:3000");
    // A local server by default. The timeouts also suit a busy machine.
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned());
    let connect = Client::connect(&url).connect_timeout(Duration::from_secs(10));
    let client = connect.request_timeout(Duration::from_secs(5)).await?;
    let archive = client.election("archive");
    let archiver = tokio::spawn(async move { archive.lead(|_lease| archive_orders()).await });

    let service = Router::new()
        .route("/orders/{id}/pay", post(pay))
        .route("/report", post(report))
        .with_state(client.clone());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, service)
        .with_graceful_shutdown(stop_signal())
        .await?;
    println!("every request has its response");

    match client.shutdown(SHUTDOWN).await {
        Ok(()) => println!("every lock is released"),
        // Some locks stay held until their leases expire.
        Err(error) => println!("{error}"),
    }
    match archiver.await? {
        Err(leasehold::Error::ShutDown) => println!("the archiver has stopped"),
        outcome => outcome?,
    }
    Ok(())
}

// ANCHOR: pay
/// Pays an order. Requests for the same order wait for each other, also on
/// other instances.
async fn pay(State(client): State<Client>, Path(id): Path<u64>) -> Response {
    let order = client.mutex(&format!("order:{id}"));
    // If the caller disconnects, axum drops the handler and with it the work.
    // The lock is then released in the background, and the next request
    // charges again: see `charge_card`.
    let paying = order.lock().timeout(TIMEOUT);
    let paid = paying.run(|lease| charge_card(id, lease.token()));
    paid.await.map_err(|error| failure(&error))
}
// ANCHOR_END: pay

/// Stands for a call to a payment service, which may end half-way.
///
/// The lock does not make it happen once. The payment service does, if the
/// order's number is the idempotency key of the call.
async fn charge_card(id: u64, token: Token) -> String {
    println!("order {id} is paid with token {token}");
    format!("order {id} is paid\n")
}

/// Writes a report, unless another request is writing it.
async fn report(State(client): State<Client>) -> Response {
    let report = client.mutex("report").try_lock();
    let guard = report.await.map_err(|error| failure(&error))?;
    println!("the report is written");
    // Fails if we lost the lease: another request may have written it too. If
    // the server is unreachable, the client keeps releasing in the background.
    let released = guard.release().await;
    released.map_err(|error| failure(&error))?;
    Ok("the report is written\n".to_owned())
}

/// Chooses the status of a failed request: 409 if another holder is in the way,
/// 503 if the caller can repeat the request later.
fn failure(error: &leasehold::Error) -> (StatusCode, String) {
    use leasehold::Error::{Busy, Lost, Timeout};
    let status = match error {
        Busy { .. } | Timeout { .. } | Lost { .. } => StatusCode::CONFLICT,
        error if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, format!("{error}\n"))
}

/// Archives paid orders while this instance leads.
async fn archive_orders() {
    loop {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
}

/// Resolves on Ctrl-C, and on SIGTERM, which platforms send to stop a service.
async fn stop_signal() {
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        () = interrupt => {}
        () = terminate => {}
    }
    println!("stopping");
}
