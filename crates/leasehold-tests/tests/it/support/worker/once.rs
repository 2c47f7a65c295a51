//! Commands of worker processes that run jobs once per tick.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Client, OnceOutcome, Tick};
use testkit::SeededRng;
use testkit::worker::say;

/// A host that runs jobs once per `period`, by a clock that is `offset` ahead.
pub(super) struct Host {
    pub(super) period: Duration,
    pub(super) offset: Duration,
    pub(super) seed: u64,
}

impl Host {
    /// Runs the jobs at each tick without end. Prints each step with the job
    /// and the tick: `ask`, then `ran` and `done`, `already` with the recorded
    /// tick, `busy` or `error`.
    pub(super) async fn run(self, client: &Client, jobs: u64) {
        let host = std::sync::Arc::new(self);
        let jobs: Vec<_> = (0..jobs)
            .map(|job| {
                let client = client.clone();
                let host = host.clone();
                tokio::spawn(async move { host.repeat(&client, job).await })
            })
            .collect();
        for job in jobs {
            job.await.expect("no panic");
        }
    }

    async fn repeat(&self, client: &Client, job: u64) {
        let mut rng = SeededRng::new(self.seed * 1000 + job);
        let mut last = self.tick().number();
        loop {
            tokio::time::sleep(self.until_next_tick()).await;
            let tick = self.tick();
            if tick.number() != last {
                last = tick.number();
                let work = Duration::from_millis(rng.below(30));
                run_tick(client, job, tick, work).await;
            }
        }
    }

    fn now(&self) -> SystemTime {
        SystemTime::now() + self.offset
    }

    fn tick(&self) -> Tick {
        Tick::at(self.now(), self.period)
    }

    fn until_next_tick(&self) -> Duration {
        let now = self.now().duration_since(UNIX_EPOCH).expect("after 1970");
        let period = self.period.as_millis();
        let left = period - now.as_millis() % period;
        Duration::from_millis(u64::try_from(left).expect("a short period"))
    }
}

async fn run_tick(client: &Client, job: u64, tick: Tick, work: Duration) {
    let once = client.once(&format!("job:{job}"), tick);
    let step = format!("{job} {}", tick.number());
    say(format_args!("ask {step}"));
    match once.start().await {
        Ok(OnceOutcome::Ran(guard)) => {
            say(format_args!("ran {step}"));
            tokio::time::sleep(work).await;
            // A lost lease does not change that it ran.
            let _: Result<_, _> = guard.finish("done").await;
            say(format_args!("done {step}"));
        }
        Ok(OnceOutcome::AlreadyRan(run)) => say(format_args!("already {step} {}", run.tick)),
        Ok(_) => say(format_args!("busy {step}")),
        Err(error) => say(format_args!("error {step} {error}")),
    }
}
