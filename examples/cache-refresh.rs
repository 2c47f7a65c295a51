//! A cache that many instances read, and that one of them refreshes.
//!
//! ```sh
//! cargo run -p examples --bin cache-refresh
//! ```
//!
//! The cache is two files that belong together, on a disk that the instances
//! share. Readers hold the lock for reading, side by side. The first instance
//! that finds the cache too old refreshes it, while the others continue with
//! the old files. It excludes them only while it writes. Then it *downgrades*
//! the lock, and all of them read the new files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Error, Guard, Mutex, RwLock, Shared};
use tokio::fs;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

const INSTANCES: usize = 4;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The cache, as one instance sees it.
struct Cache {
    folder: PathBuf,
    /// Protects the files.
    files: RwLock,
    /// Held by the instance that refreshes the files.
    refresh: Mutex,
}

/// The files of the cache, which no instance changes while the guard exists.
struct Snapshot {
    version: u64,
    refreshed: bool,
    guard: Guard<Shared>,
}

impl Cache {
    fn new(client: &Client, folder: PathBuf) -> Self {
        Self {
            folder,
            files: client.rw_lock("catalogue"),
            refresh: client.mutex("catalogue:refresh"),
        }
    }

    // ANCHOR: refresh
    /// Reads the cache, and refreshes it if it is older than `wanted`. Returns
    /// the old files if another instance refreshes them.
    async fn read(&self, wanted: u64) -> Result<Snapshot, BoxError> {
        let guard = self.files.read().await?;
        let version = self.version().await?;
        if version < wanted {
            match self.refresh.try_lock().await {
                Ok(refresh) => return self.refresh(guard, refresh, wanted).await,
                Err(Error::Busy { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Snapshot {
            version,
            refreshed: false,
            guard,
        })
    }

    /// Writes new files, and returns them locked for reading.
    async fn refresh(
        &self,
        reader: Guard<Shared>,
        refresh: Guard,
        version: u64,
    ) -> Result<Snapshot, BoxError> {
        // The files are still old: the reader kept writers out so far, and the
        // mutex does from here on. A reader cannot become a writer, because two
        // of them would deadlock.
        reader.release().await?;
        let writer = self.files.write().await?;
        self.write(&writer, version).await?;
        let guard = writer.downgrade().await?;
        refresh.release().await?;
        Ok(Snapshot {
            version,
            refreshed: true,
            guard,
        })
    }
    // ANCHOR_END: refresh

    /// Returns the version of the older file; zero if one is missing. They
    /// differ if an instance crashed while it wrote them.
    async fn version(&self) -> Result<u64, BoxError> {
        let mut oldest = u64::MAX;
        for name in ["prices", "stock"] {
            let path = self.folder.join(name);
            if !fs::try_exists(&path).await? {
                return Ok(0);
            }
            oldest = oldest.min(fs::read_to_string(path).await?.parse()?);
        }
        Ok(oldest)
    }

    /// Writes both files. Stops if the lease is lost, since another instance
    /// may write them then. [`version`](Self::version) notices the difference.
    async fn write(&self, writer: &Guard, version: u64) -> Result<(), BoxError> {
        for name in ["prices", "stock"] {
            writer.check()?;
            fs::write(self.folder.join(name), version.to_string()).await?;
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let folder = std::env::temp_dir().join(format!("cache-refresh-{}", std::process::id()));
    fs::create_dir_all(&folder).await?;
    let outcome = run_instances(&folder).await;
    fs::remove_dir_all(&folder).await?;
    outcome
}

async fn run_instances(folder: &Path) -> Result<(), BoxError> {
    for version in [1, 2] {
        let all = Arc::new(Barrier::new(INSTANCES));
        let mut instances = JoinSet::new();
        for _ in 0..INSTANCES {
            instances.spawn(serve(folder.to_owned(), version, all.clone()));
        }
        let mut refreshes = 0;
        while let Some(refreshed) = instances.join_next().await {
            refreshes += usize::from(refreshed??);
        }
        println!("version {version}: {refreshes} of {INSTANCES} instances refreshed the cache");
        println!("version {version}: {INSTANCES} instances read it side by side");
    }
    Ok(())
}

/// Serves requests until they get the version `wanted`, and returns whether
/// this instance refreshed the cache.
async fn serve(folder: PathBuf, wanted: u64, all: Arc<Barrier>) -> Result<bool, BoxError> {
    // A client of its own, as on a host of its own.
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned());
    let connect = Client::connect(&url).connect_timeout(Duration::from_secs(10));
    let client = connect.request_timeout(Duration::from_secs(5)).await?;
    let cache = Cache::new(&client, folder);
    let snapshot = loop {
        let snapshot = cache.read(wanted).await?;
        if snapshot.version >= wanted {
            break snapshot;
        }
        // This request is served from the old files.
        snapshot.guard.release().await?;
    };
    // Every instance holds the lock here, as a reader.
    all.wait().await;
    snapshot.guard.release().await?;
    client.shutdown(Duration::from_secs(5)).await?;
    Ok(snapshot.refreshed)
}
