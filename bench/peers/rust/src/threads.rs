//! The library's blocking API, used by threads of a process without a runtime.

use leasehold::Client;

pub(crate) struct Threads {
    client: Client,
}

impl Threads {
    pub(crate) fn connect(port: u16) -> Self {
        let url = format!("redis://127.0.0.1:{port}/");
        let client = Client::connect(&url).wait().expect("the server is up");
        Self { client }
    }

    pub(crate) fn pairs(&self, prefix: &str, threads: u64, count: u64) {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    let name = format!("{prefix}:{thread}");
                    for _ in 0..count / threads {
                        let guard = self.client.mutex(&name).lock().wait().expect("the lock");
                        guard.release().wait().expect("released");
                    }
                });
            }
        });
    }
}
