//! `leasehold top`: a full-screen view of locks. It is read-only unless
//! `--allow-release` is set.

mod state;
mod view;

use std::time::Instant;

use leasehold::{Client, Error};
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::{mpsc, watch};

use crate::args::{ServerArgs, TopArgs};
use crate::exit;
use crate::output::CliError;
use crate::settings::Settings;
use crate::signals::Signals;
use state::{Mode, Query, Snapshot, State};

pub(crate) async fn top(server: &ServerArgs, args: &TopArgs) -> Result<u8, CliError> {
    let settings = Settings::load(server)?;
    let client = settings.connect(None).await?;
    let state = State::new(args, settings.has_empty_prefix());
    // Signals are caught first: one that ends the process after the terminal
    // is set up would not restore it.
    let mut signals = Signals::new()?;
    let mut terminal = ratatui::try_init().map_err(|error| {
        CliError::usage(format!("cannot set up the terminal: {error}"))
            .with_hint("`leasehold ls` needs no terminal")
    })?;
    let outcome = tokio::select! {
        outcome = show_locks(&mut terminal, &client, args, state) => outcome.map(|()| exit::OK),
        signal = signals.termination() => Ok(exit::by_signal(signal as i32)),
    };
    // Fails only for a terminal that hung up.
    let _ = ratatui::try_restore();
    outcome
}

/// An event from the terminal or the server.
enum Event {
    Key(KeyEvent),
    Resize,
    Refreshed(Snapshot),
    Failed(Error),
}

async fn show_locks(
    terminal: &mut ratatui::DefaultTerminal,
    client: &Client,
    args: &TopArgs,
    mut state: State,
) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::new(exit::UNREACHABLE, error);
    let (sender, mut events) = mpsc::unbounded_channel();
    let (query, queries) = watch::channel(state.query());
    read_keys(sender.clone());
    let refreshing = refresh(client.clone(), args.pattern.clone(), queries, sender);
    let mut refreshing = std::pin::pin!(refreshing);
    loop {
        terminal
            .draw(|frame| view::draw(frame, &state))
            .map_err(failed)?;
        let event = tokio::select! {
            event = events.recv() => event,
            () = &mut refreshing => None,
        };
        match event {
            None => return Ok(()),
            Some(Event::Resize) => {}
            Some(Event::Refreshed(snapshot)) => state.on_refresh(snapshot),
            Some(Event::Failed(error)) => state.on_failure(&error),
            Some(Event::Key(key)) => {
                if !on_key(&mut state, client, key).await {
                    return Ok(());
                }
                query.send_if_modified(|query| {
                    let changed = *query != state.query();
                    *query = state.query();
                    changed
                });
            }
        }
    }
}

/// Reads the terminal on a thread, which ends with the process.
fn read_keys(events: mpsc::UnboundedSender<Event>) {
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let sent = match event {
                event::Event::Key(key) if key.kind == KeyEventKind::Press => {
                    events.send(Event::Key(key))
                }
                event::Event::Resize(..) => events.send(Event::Resize),
                _ => continue,
            };
            if sent.is_err() {
                return;
            }
        }
    });
}

/// Scans all locks at every interval, and immediately when the query changes.
async fn refresh(
    client: Client,
    pattern: String,
    mut queries: watch::Receiver<Query>,
    events: mpsc::UnboundedSender<Event>,
) {
    loop {
        let query = queries.borrow_and_update().clone();
        let start = Instant::now();
        let event = match Snapshot::take(&client, &pattern, &query).await {
            Ok(snapshot) => Event::Refreshed(snapshot),
            Err(error) => Event::Failed(error),
        };
        if events.send(event).is_err() {
            return;
        }
        // A pause as long as the scan bounds the load on a large server.
        let pause = query.interval.max(start.elapsed());
        let _ = tokio::time::timeout(pause, queries.changed()).await;
    }
}

/// Handles a key. Returns false if it quits.
async fn on_key(state: &mut State, client: &Client, key: KeyEvent) -> bool {
    if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
        return false;
    }
    match (&state.mode, key.code) {
        (Mode::Filter, KeyCode::Enter) => state.mode = Mode::List,
        (Mode::Filter, KeyCode::Esc) => state.clear_filter(),
        (Mode::Filter, KeyCode::Backspace) => {
            state.filter.pop();
        }
        (Mode::Filter, KeyCode::Char(c)) => state.filter.push(c),
        (Mode::Confirm(name), KeyCode::Char('y')) => {
            let name = name.clone();
            state.mode = Mode::List;
            state.on_release(&name, client.force_release(&name).await);
        }
        (Mode::Confirm(_), _) => state.mode = Mode::List,
        (_, KeyCode::Char('q')) => return false,
        (Mode::Detail, KeyCode::Esc | KeyCode::Enter) => state.mode = Mode::List,
        (_, KeyCode::Enter) => state.mode = Mode::Detail,
        (_, KeyCode::Esc) => state.clear_filter(),
        (_, KeyCode::Char('/')) => state.mode = Mode::Filter,
        (_, KeyCode::Char('s')) => state.next_sort(),
        (_, KeyCode::Char('r')) => state.confirm_release(),
        (_, KeyCode::Down | KeyCode::Char('j')) => state.move_selection(1),
        (_, KeyCode::Up | KeyCode::Char('k')) => state.move_selection(-1),
        (_, KeyCode::PageDown) => state.move_selection(20),
        (_, KeyCode::PageUp) => state.move_selection(-20),
        _ => {}
    }
    true
}
