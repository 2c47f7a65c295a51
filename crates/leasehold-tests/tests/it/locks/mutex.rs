//! What a mutex adds to the contract of every lock: reentrant handles, its
//! holder, names and keys.

use leasehold::Error;
use testkit::ServerExt;

use crate::support::{
    AMPLE, LEASE, SHORT, client, exists, is_busy, loss_of, name, on_every_server,
};

#[test]
fn reentrant_handle_counts_a_thousand_entries() {
    on_every_server(|server| async move {
        let name = name();
        let handle = client(&server).await.mutex(&name).reentrant();
        let outsider = client(&server).await.mutex(&name);
        let mut guards = Vec::new();
        for _ in 0..1000 {
            guards.push(handle.clone().lock().await.unwrap());
        }
        let before = server.info("total_commands_processed");
        assert!(
            guards
                .iter()
                .all(|guard| guard.token() == guards[0].token())
        );
        let last = guards.remove(500);
        for (released, guard) in guards.into_iter().enumerate() {
            guard.release().await.unwrap();
            assert_eq!(handle.guards(), 999 - released);
        }
        assert!(
            server.info("total_commands_processed") - before < 100.0,
            "the nested releases sent requests"
        );
        assert!(is_busy(outsider.try_lock()).await);
        last.release().await.unwrap();
        assert!(!is_busy(outsider.try_lock()).await);
    });
}

#[test]
fn lost_reentrant_lock_is_acquired_again() {
    on_every_server(|server| async move {
        let name = name();
        let handle = client(&server).await.mutex(&name).reentrant();
        let first = handle.lock().fixed_lease(SHORT).await.unwrap();
        assert!(first.lost().await.is_some());
        let second = handle.lock().timeout(AMPLE).await.unwrap();
        assert!(second.token() > first.token());
        assert!(loss_of(first.release().await).is_some());
        second.check().unwrap();
    });
}

#[test]
fn holder_reports_host_pid_since_and_note() {
    on_every_server(|server| async move {
        let name = name();
        let mutex = client(&server).await.mutex(&name);
        assert_eq!(mutex.holder().await.unwrap(), None);
        let _guard = mutex.lock().note("a b  c").await.unwrap();
        let holder = mutex.holder().await.unwrap().expect("held");
        assert_eq!(holder.process.pid, Some(std::process::id()));
        assert_eq!(holder.process.note.as_deref(), Some("a b  c"));
        assert!(holder.process.host.is_some());
        assert!(holder.lease_remaining.unwrap() <= LEASE);
        assert!(holder.process.since.unwrap().elapsed().unwrap() < AMPLE);
    });
}

#[test]
fn names_are_used_verbatim_or_rejected() {
    on_every_server(|server| async move {
        let client = client(&server).await;
        for name in [
            "{",
            "}",
            "{}x",
            "a{b}c",
            "мьютекс",
            "a b\r\n\0*?[",
            &"x".repeat(512),
        ] {
            let guard = client.mutex(name).lock().await.unwrap();
            assert!(exists(&server, name), "{name:?}");
            guard.release().await.unwrap();
            assert!(!exists(&server, name), "{name:?}");
        }
        for name in ["", &"x".repeat(513)] {
            let refused = client.mutex(name).try_lock().await;
            assert!(matches!(refused, Err(Error::Invalid { what: "name", .. })));
        }
    });
}

#[test]
fn other_data_type_returns_wrong_type() {
    on_every_server(|server| async move {
        let client = client(&server).await;
        for (kind, make) in [
            ("list", ["RPUSH", "x"].as_slice()),
            ("set", &["SADD", "x"]),
            ("hash", &["HSET", "f", "x"]),
            ("zset", &["ZADD", "1", "x"]),
            ("stream", &["XADD", "*", "f", "x"]),
        ] {
            let name = format!("typed:{kind}");
            let key = crate::support::key(&name);
            let args: Vec<_> = [make[0], key.as_str()]
                .into_iter()
                .chain(make[1..].iter().copied())
                .collect();
            server.tell(&args);
            let error = client.mutex(&name).lock().await.unwrap_err();
            assert!(
                matches!(error, Error::WrongType { .. }),
                "{kind}: {error:?}"
            );
            assert_eq!(server.ask(&["TYPE", &key]).text(), kind);
        }
    });
}
