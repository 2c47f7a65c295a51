//! The event `fork`: a holder's process forks, and the child uses what it
//! inherited.
//!
//! The holder is a process of its own: a child of the test program would
//! inherit the connections of all other tests.

use std::time::{Duration, Instant};

use fork::Fork;
use leasehold::Client;
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::feature::{Feature, Holding, Trace};
use super::promises::{Exclusion, Pair, released_by_now_or_soon};
use super::scene::{Holder, LONG, Terms, url};
use crate::support::worker;
use crate::support::{AMPLE, name};

/// How long the child tries each operation. It refuses at once, or waits for a
/// reply that its parent receives.
const LIMIT: Duration = Duration::from_secs(2);

/// A signal that ends the child when it did what only its parent may do.
const INTRUDED: Signal = Signal::USR1;

pub(super) async fn fork(pair: &Pair) {
    let port = pair.scene.port;
    let mut holder = worker::start_at(&url(port), LONG);
    let name = name();
    let feature = pair.feature.name;
    let peer = pair.scene.peer.unwrap_or(0);
    let mut ask = |command: &str| tokio::task::block_in_place(|| holder.ask(command));
    assert_eq!(ask(&format!("hold {feature} {name} {port} {peer}")), "held");
    let contest = pair.contend(&name, Trace::default()).await;
    assert_eq!(ask("fork"), "the child left the lock alone, held: true");
    assert!(contest.is_open(), "the contender has a lock that is held");
    assert_eq!(ask("release"), "released");
    drop(contest.won(Exclusion::Strict).await);
    assert_eq!(ask("shutdown"), "Ok(())");
}

/// Serves the test in the holder's process: holds a lock by a feature, and then
/// follows the lines of its standard input.
pub(crate) async fn serve(
    [feature, name, port, peer]: [&str; 4],
    lines: &mut impl Iterator<Item = std::io::Result<String>>,
    say: fn(String),
) {
    let number = |port: &str| port.parse().expect("a port");
    let peer = Some(number(peer)).filter(|peer| *peer > 0);
    let holder = Holder::connect(number(port), peer, Terms::with_lease(LONG)).await;
    let hold = Feature::named(feature).hold;
    let mut holding = hold(holder.clone(), name.to_owned()).await.ok();
    say("held".to_owned());
    while let Some(Ok(line)) = lines.next() {
        match line.as_str() {
            "fork" => {
                let held = holding.take().expect("held");
                let client = holder.client.clone();
                // A thread without a runtime, so that the child can start one.
                let forked = std::thread::spawn(move || fork_child(held, &client));
                let (held, what) = forked.join().expect("no panic");
                say(format!("{what}, held: {}", held.is_valid()));
                holding = Some(held);
            }
            "release" => {
                released_by_now_or_soon(holding.take().expect("held").release().await);
                say("released".to_owned());
            }
            "shutdown" => say(format!("{:?}", holder.shut_down().await)),
            other => panic!("unknown command {other:?}"),
        }
    }
}

/// Forks a child that uses its copy of the client and of the held lock, and
/// waits for it.
fn fork_child(holding: Holding, client: &Client) -> (Holding, &'static str) {
    match fork::fork().expect("a child") {
        Fork::Child => {
            let how = match intrude(holding, client) {
                true => INTRUDED,
                false => Signal::KILL,
            };
            // Without destructors, and without a word to the test harness.
            let _ = kill_process(getpid(), how);
            unreachable!("the signal ends this process");
        }
        Fork::Parent(pid) => {
            let end = Instant::now() + AMPLE / 2;
            loop {
                match fork::waitpid_nohang(pid).expect("a child") {
                    Some(status) if status & 0x7f == INTRUDED.as_raw() => {
                        return (holding, "the child used the lock");
                    }
                    Some(_) => return (holding, "the child left the lock alone"),
                    None if Instant::now() > end => {
                        let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
                        return (holding, "the child hangs");
                    }
                    None => std::thread::sleep(Duration::from_millis(10)),
                }
            }
        }
    }
}

/// Tries to acquire and to release in the child. Returns whether it could.
fn intrude(holding: Holding, client: &Client) -> bool {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    let intruded = runtime.block_on(async {
        let lock = client.mutex("the child's").try_lock();
        let acquired = tokio::time::timeout(LIMIT, lock.into_future()).await;
        let released = tokio::time::timeout(LIMIT, holding.release()).await;
        matches!(acquired, Ok(Ok(_))) || matches!(released, Ok(Ok(())))
    });
    // Not when its threads have ended: they wait for the parent's replies.
    runtime.shutdown_background();
    intruded
}
