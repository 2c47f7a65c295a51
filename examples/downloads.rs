//! Downloads that spare the server: two at a time, however many processes there
//! are.
//!
//! ```sh
//! cargo run -p examples --bin downloads
//! ```
//!
//! The process starts three workers with four downloads each. It also plays the
//! server, and counts how many downloads it serves at once. The permits of a
//! worker that crashes become available when its lease expires.

use std::error::Error;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Client, Semaphore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How many downloads run at a time, in all processes.
const PERMITS: u32 = 2;

const WORKERS: u32 = 3;
const FILES: u32 = 4;

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // A local server by default. The timeouts also suit a busy machine.
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned());
    let connect = Client::connect(&url).connect_timeout(Duration::from_secs(10));
    let client = connect.request_timeout(Duration::from_secs(5)).await?;
    let permits = client.semaphore("downloads", PERMITS);
    match std::env::args().nth(1) {
        Some(address) => work(permits, &address).await?,
        None => start_workers(permits).await?,
    }
    client.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

// ANCHOR: work
/// Downloads all files of one worker.
async fn work(permits: Semaphore, address: &str) -> Result<(), BoxError> {
    let mut downloads = JoinSet::new();
    for _ in 0..FILES {
        let permits = permits.clone();
        let address = address.to_owned();
        downloads.spawn(async move {
            // Waits for a permit, and drops the download if the permit is lost.
            permits.acquire().run(|_lease| download(address)).await?
        });
    }
    let mut bytes = 0;
    while let Some(download) = downloads.join_next().await {
        bytes += download??;
    }
    println!("{FILES} files, {bytes} bytes");
    Ok(())
}
// ANCHOR_END: work

/// Downloads a file, and returns its length.
async fn download(address: String) -> Result<usize, BoxError> {
    let mut content = Vec::new();
    let mut server = TcpStream::connect(address).await?;
    Ok(server.read_to_end(&mut content).await?)
}

/// Starts the workers, and prints what they and the server report.
async fn start_workers(permits: Semaphore) -> Result<(), BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let server = Arc::<Server>::default();
    tokio::spawn(server.clone().run(listener));

    let program = std::env::current_exe()?;
    let start = |_| {
        let mut worker = Command::new(&program);
        worker.arg(&address).stdout(Stdio::piped());
        worker.kill_on_drop(true).spawn()
    };
    let workers: Vec<_> = (0..WORKERS).map(start).collect::<Result<_, _>>()?;
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, server.open_when_busy(&permits)).await??;

    for (number, worker) in (1..).zip(workers) {
        let output = worker.wait_with_output().await?;
        if !output.status.success() {
            return Err(format!("worker {number} failed: {}", output.status).into());
        }
        let output = String::from_utf8_lossy(&output.stdout);
        print!("worker {number}: {output}");
    }
    let most = server.most.load(Ordering::SeqCst);
    println!("the server served at most {most} downloads at a time");
    Ok(())
}

/// A server that counts its downloads.
#[derive(Default)]
struct Server {
    active: AtomicU32,
    most: AtomicU32,
    is_open: watch::Sender<bool>,
}

impl Server {
    async fn run(self: Arc<Self>, listener: TcpListener) {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(self.clone().serve(client));
        }
    }

    async fn serve(self: Arc<Self>, mut client: TcpStream) {
        let active = self.active.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(active, Ordering::SeqCst);
        let _ = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
        // Before the response: after it, the client releases its permit.
        self.active.fetch_sub(1, Ordering::SeqCst);
        if let Err(error) = client.write_all(&[0; 1000]).await {
            eprintln!("a download failed: {error}");
        }
    }

    /// Sends the first response when all permits are held and every worker
    /// waits for more.
    async fn open_when_busy(&self, permits: &Semaphore) -> Result<(), leasehold::Error> {
        loop {
            let counts = permits.permits().await?;
            let active = self.active.load(Ordering::SeqCst);
            if active >= PERMITS && counts.waiters == WORKERS {
                println!("{active} downloads, {} processes wait", counts.waiters);
                self.is_open.send_replace(true);
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
