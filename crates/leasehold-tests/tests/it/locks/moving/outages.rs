//! Outages of one of the servers, and the shutdown of one of the clients.

use std::future::IntoFuture;

use leasehold::{Error, Lease, Loss, MultiLock};
use testkit::{Fault, Flavor, Proxy, ServerExt, Setup};

use super::{Pair, token_of, waited_for};
use crate::support::{
    AMPLE, LEASE, SHORT, client, client_at, connect_at, loss_of, name, run, server,
    with_least_privilege,
};

#[test]
fn shutdown_of_either_client_frees_both() {
    run(async {
        for which in 0..2 {
            let pair = Pair::start().await;
            let (name, waited) = (name(), name());
            let held = pair.mutex(&name).await.unwrap();
            let blocker = client(&pair.new).await.mutex(&waited).lock().await.unwrap();
            let waiting = tokio::spawn(pair.mutex(&waited).into_future());
            waited_for(&pair.new, &waited).await;
            let ending = [&pair.from, &pair.to][which];
            ending.shutdown(AMPLE).await.unwrap();
            let ended = tokio::time::timeout(AMPLE, waiting).await;
            let error = ended.expect("the wait ends").unwrap().unwrap_err();
            let has_ended = matches!(
                error,
                Error::ShutDown
                    | Error::Lost {
                        loss: Loss::ShutDown,
                        ..
                    }
            );
            assert!(has_ended, "{error:?}");
            assert_eq!(loss_of(held.release().await), Some(Loss::ShutDown));
            let error = pair.mutex(&name).await.unwrap_err();
            assert!(matches!(error, Error::ShutDown), "{error:?}");
            blocker.release().await.unwrap();
            pair.becomes_free().await;
        }
    });
}

#[test]
fn restart_with_data_keeps_both() {
    run(async {
        let start = || {
            let durable = Setup::default().option("appendonly", "yes");
            with_least_privilege(durable.option("appendfsync", "always"), &Flavor::one())
        };
        let mut pair = Pair::of(start(), start()).await;
        let name = name();
        let held = pair.mutex(&name).await.unwrap();
        let token = token_of(&held, <Lease>::token);
        pair.old.restart().unwrap();
        pair.new.restart().unwrap();
        held.extend(LEASE).await.unwrap();
        held.check().unwrap();
        held.release().await.unwrap();
        for client in [&pair.from, &pair.to] {
            let next = client.mutex(&name).lock().timeout(AMPLE).await.unwrap();
            assert!(next.token() > token);
        }
    });
}

#[test]
fn unreachable_new_server_frees_old_one() {
    run(async {
        let (old, new) = (server(), server());
        let proxy = Proxy::start(new.port());
        let quick = connect_at(proxy.port()).max_outage(SHORT);
        let (from, to) = (client(&old).await, quick.await.unwrap());
        let name = name();
        proxy.refuse(true);
        proxy.sever();
        let parts = || (from.mutex(&name).lock(), to.mutex(&name).lock());
        let (one, two) = parts();
        let error = MultiLock::moving(one, two).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        from.mutex(&name)
            .try_lock()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        proxy.heal();
        proxy.refuse(false);
        let (one, two) = parts();
        MultiLock::moving(one, two)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    });
}

/// The larger token must be on the other server before anyone sees it.
#[test]
fn unconfirmed_token_frees_both() {
    run(async {
        let (old, new) = (server(), server());
        let proxy = Proxy::start(old.port());
        let (from, to) = (client_at(proxy.port()).await, client(&new).await);
        let name = name();
        for lost in 1..=3_u32 {
            // The new server has issued larger tokens.
            let issued = 9_000_000_000_000_000 + u64::from(lost) * 1000;
            new.tell(&["SET", "leasehold:token:{3560}", &issued.to_string()]);
            let left = std::sync::atomic::AtomicU32::new(lost);
            proxy.inject(move |request| {
                let is_raise = request[0].starts_with(b"EVAL")
                    && request
                        .iter()
                        .any(|arg| arg.starts_with(b"leasehold:token:"));
                let count = |left: u32| left.checked_sub(1);
                let ordering = std::sync::atomic::Ordering::SeqCst;
                match is_raise && left.fetch_update(ordering, ordering, count).is_ok() {
                    true => Fault::CutReply,
                    false => Fault::None,
                }
            });
            let both = MultiLock::moving(from.mutex(&name).lock(), to.mutex(&name).lock());
            match (lost, both.await) {
                (1, Ok(held)) => {
                    let token = token_of(&held, <Lease>::token);
                    held.release().await.unwrap();
                    let next = from.mutex(&name).lock().await.unwrap();
                    assert!(next.token() > token);
                }
                (2.., Err(Error::OutcomeUnknown(_))) => {}
                (_, outcome) => panic!("{lost}: {outcome:?}"),
            }
            proxy.heal();
            for client in [&from, &to] {
                client
                    .mutex(&name)
                    .lock()
                    .timeout(AMPLE)
                    .await
                    .unwrap()
                    .release()
                    .await
                    .unwrap();
            }
        }
    });
}
