//! `leasehold top`: the locks that matter now, full screen. Only looks, unless it is allowed to do more.

mod state;
mod view;

use std::time::Instant;

use leasehold::Client;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::{mpsc, watch};

use crate::args::{ServerArgs, TopArgs};
use crate::exit;
use crate::output::CliError;
use crate::settings::Settings;
use crate::signals::Signals;
use state::{Found, Mode, State};

pub(crate) async fn top(server: &ServerArgs, args: &TopArgs) -> Result<u8, CliError> {
    let settings = Settings::read(server)?;
    let client = settings.connect(None).await?;
    let state = State::new(args, settings.has_no_prefix());
    // Caught before the terminal is changed: a signal would end the command and leave it so.
    let mut signals = Signals::catch()?;
    let mut terminal = ratatui::try_init().map_err(|error| {
        CliError::usage(format!("no terminal: {error}")).with_hint("`leasehold ls` needs none")
    })?;
    let outcome = tokio::select! {
        outcome = watch_locks(&mut terminal, &client, args, state) => outcome.map(|()| exit::OK),
        signal = signals.end() => Ok(exit::by_signal(signal as i32)),
    };
    // A terminal that hung up cannot be restored, and nobody sees it.
    let _ = ratatui::try_restore();
    outcome
}

/// What comes from the terminal and from the server.
enum News {
    Key(KeyEvent),
    Resized,
    Found(Found),
    Failed(leasehold::Error),
}

async fn watch_locks(
    terminal: &mut ratatui::DefaultTerminal,
    client: &Client,
    args: &TopArgs,
    mut state: State,
) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::new(exit::UNREACHABLE, error);
    let (sender, mut news) = mpsc::unbounded_channel();
    let (order, orders) = watch::channel(state.order());
    listen_to_keys(sender.clone());
    let looking = look_again_and_again(client.clone(), args.pattern.clone(), orders, sender);
    let mut looking = std::pin::pin!(looking);
    loop {
        terminal
            .draw(|frame| view::draw(frame, &mut state))
            .map_err(failed)?;
        let news = tokio::select! {
            news = news.recv() => news,
            () = &mut looking => None,
        };
        match news {
            None => return Ok(()),
            Some(News::Resized) => {}
            Some(News::Found(found)) => state.found(found),
            Some(News::Failed(error)) => state.failed(&error),
            Some(News::Key(key)) => {
                if !pressed(&mut state, client, key).await {
                    return Ok(());
                }
                order.send_if_modified(|order| {
                    let changed = *order != state.order();
                    *order = state.order();
                    changed
                });
            }
        }
    }
}

/// Keys are read by a thread of their own, which ends with the process.
fn listen_to_keys(news: mpsc::UnboundedSender<News>) {
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let sent = match event {
                Event::Key(key) if key.kind == KeyEventKind::Press => news.send(News::Key(key)),
                Event::Resize(..) => news.send(News::Resized),
                _ => continue,
            };
            if sent.is_err() {
                return;
            }
        }
    });
}

/// Walks through all locks, again and again; sooner when something else is wanted.
async fn look_again_and_again(
    client: Client,
    pattern: String,
    mut orders: watch::Receiver<state::Order>,
    news: mpsc::UnboundedSender<News>,
) {
    loop {
        let order = orders.borrow_and_update().clone();
        let start = Instant::now();
        let found = Found::look(&client, &pattern, &order).await;
        let told = match found {
            Ok(found) => news.send(News::Found(found)),
            Err(error) => news.send(News::Failed(error)),
        };
        if told.is_err() {
            return;
        }
        // A large server is not looked at without pause.
        let pause = order.interval.max(start.elapsed());
        let _ = tokio::time::timeout(pause, orders.changed()).await;
    }
}

/// Does what a key says; false when it says to end.
async fn pressed(state: &mut State, client: &Client, key: KeyEvent) -> bool {
    if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
        return false;
    }
    match (&state.mode, key.code) {
        (Mode::Filter, KeyCode::Enter) => state.mode = Mode::List,
        (Mode::Filter, KeyCode::Esc) => state.drop_filter(),
        (Mode::Filter, KeyCode::Backspace) => {
            state.filter.pop();
        }
        (Mode::Filter, KeyCode::Char(c)) => state.filter.push(c),
        (Mode::Confirm(name), KeyCode::Char('y')) => {
            let name = name.clone();
            state.mode = Mode::List;
            state.released(&name, client.force_release(&name).await);
        }
        (Mode::Confirm(_), _) => state.mode = Mode::List,
        (_, KeyCode::Char('q')) => return false,
        (Mode::Detail, KeyCode::Esc | KeyCode::Enter) => state.mode = Mode::List,
        (_, KeyCode::Enter) => state.mode = Mode::Detail,
        (_, KeyCode::Esc) => state.drop_filter(),
        (_, KeyCode::Char('/')) => state.mode = Mode::Filter,
        (_, KeyCode::Char('s')) => state.sort_otherwise(),
        (_, KeyCode::Char('r')) => state.ask_to_release(),
        (_, KeyCode::Down | KeyCode::Char('j')) => state.select(1),
        (_, KeyCode::Up | KeyCode::Char('k')) => state.select(-1),
        (_, KeyCode::PageDown) => state.select(20),
        (_, KeyCode::PageUp) => state.select(-20),
        _ => {}
    }
    true
}
