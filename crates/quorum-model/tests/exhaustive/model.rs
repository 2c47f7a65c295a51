//! The protocol as a machine: its states, what can happen in each, and what that leads to.

use std::collections::BTreeSet;

use stateright::{Model, Property};

/// How tokens come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// The client proposes one to all nodes, which grant only above what they granted before: ours.
    Propose,
    /// Every node counts by itself, and the client takes the largest count: wrong.
    CountAndMax,
}

/// What a node does that was started again without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// Waits until all who were at it have stopped, and then votes only above what a majority knows: ours.
    Quarantine,
    /// Votes at once: wrong.
    AtOnce,
}

/// What is tried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quorum {
    pub(crate) scheme: Scheme,
    pub(crate) restart: Restart,
    pub(crate) nodes: usize,
    pub(crate) clients: usize,
    /// How often the clients try, all of them together.
    pub(crate) attempts: u8,
    /// Tokens are from 1 to this.
    pub(crate) tokens: u8,
    /// How often nodes lose their data, all of them together.
    pub(crate) losses: u8,
    /// Whether holders put their lock on nodes that missed it.
    pub(crate) fills: bool,
}

/// One acquisition: client and attempt.
type Owner = (usize, u8);

/// A set of nodes, one bit each.
type Nodes = u8;

/// A moment in the life of all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    nodes: Vec<Node>,
    clients: Vec<Client>,
    network: BTreeSet<Message>,
    attempts: u8,
    losses: u8,
    /// What was granted so far.
    granted: BTreeSet<u8>,
    pub(crate) acquisitions: u8,
    /// Faults, once seen.
    pub(crate) token_twice: bool,
    pub(crate) token_fell: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    holder: Option<Owner>,
    /// The highest token granted.
    highest: u8,
    votes: bool,
    /// Who was at it when the node lost its data: it waits until they have stopped, as the longest lease says.
    waits_for: BTreeSet<Owner>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    attempt: u8,
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// Has asked all nodes; those in `grants` have said yes. `floor` was the highest token when it began.
    Asking {
        token: u8,
        floor: u8,
        grants: Nodes,
    },
    /// Counts on the lock.
    Holding {
        token: u8,
    },
}

/// What is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Message {
    Ask {
        owner: Owner,
        node: usize,
        token: u8,
    },
    Grant {
        owner: Owner,
        node: usize,
        token: u8,
    },
    /// A holder puts its lock on a node that missed it.
    Fill {
        owner: Owner,
        node: usize,
        token: u8,
    },
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A client asks all nodes, under this token.
    Begin(usize, u8),
    /// A message arrives; one that is lost is one that never does.
    Arrive(Message),
    /// A client stops asking, or counting on the lock: it gave it back, or its time is over.
    Stop(usize),
    FillIn(usize, usize),
    /// A node forgets a holder that has stopped.
    Free(usize),
    /// A node is started again without its data.
    Lose(usize),
    /// A node votes again, after these have told what they know.
    LetIn(usize, Nodes),
}

impl Quorum {
    fn is_majority(&self, nodes: Nodes) -> bool {
        nodes.count_ones() as usize > self.nodes / 2
    }

    /// Takes note of an answer; the client has the lock when a majority has said yes.
    fn hear(&self, state: &mut State, owner: Owner, node: usize, granted: u8) {
        let client = &mut state.clients[owner.0];
        let Phase::Asking {
            token,
            floor,
            grants,
        } = &mut client.phase
        else {
            return;
        };
        if client.attempt != owner.1 {
            return;
        }
        *grants |= 1 << node;
        *token = (*token).max(granted);
        let (token, floor, grants) = (*token, *floor, *grants);
        if self.is_majority(grants) {
            client.phase = Phase::Holding { token };
            state.token_fell |= token <= floor;
            state.token_twice |= !state.granted.insert(token);
            state.acquisitions += 1;
        }
    }

    /// A node decides about a request.
    fn decide(&self, node: &mut Node, owner: Owner, token: u8) -> Option<u8> {
        let free = node.holder.is_none() || node.holder == Some(owner);
        if !node.votes || !free {
            return None;
        }
        let token = match self.scheme {
            Scheme::Propose if token > node.highest => token,
            Scheme::Propose => return None,
            Scheme::CountAndMax => node.highest + 1,
        };
        node.holder = Some(owner);
        node.highest = token;
        Some(token)
    }
}

impl State {
    /// Whether `owner` asks for the lock or counts on it.
    fn is_at_it(&self, owner: Owner) -> bool {
        let client = &self.clients[owner.0];
        let at_it = matches!(client.phase, Phase::Asking { .. } | Phase::Holding { .. });
        at_it && client.attempt == owner.1
    }

    /// All who ask for the lock or count on it.
    fn at_it(&self) -> impl Iterator<Item = Owner> {
        let owners = self.clients.iter().enumerate();
        let owners = owners.map(|(number, client)| (number, client.attempt));
        owners.filter(|owner| self.is_at_it(*owner))
    }

    /// Forgets answers to those who no longer listen: they make no difference.
    fn forget_unheard(&mut self) {
        let mut network = std::mem::take(&mut self.network);
        network.retain(|message| match message {
            Message::Grant { owner, .. } => {
                let client = &self.clients[owner.0];
                client.attempt == owner.1 && matches!(client.phase, Phase::Asking { .. })
            }
            _ => true,
        });
        self.network = network;
    }

    fn holders(&self) -> usize {
        let holding = |client: &&Client| matches!(client.phase, Phase::Holding { .. });
        self.clients.iter().filter(holding).count()
    }
}

impl Model for Quorum {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let node = Node {
            holder: None,
            highest: 0,
            votes: true,
            waits_for: BTreeSet::new(),
        };
        let client = Client {
            attempt: 0,
            phase: Phase::Idle,
        };
        vec![State {
            nodes: vec![node; self.nodes],
            clients: vec![client; self.clients],
            network: BTreeSet::new(),
            attempts: 0,
            losses: 0,
            granted: BTreeSet::new(),
            acquisitions: 0,
            token_twice: false,
            token_fell: false,
        }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        for (number, client) in state.clients.iter().enumerate() {
            match client.phase {
                Phase::Idle if state.attempts == self.attempts => {}
                Phase::Idle => match self.scheme {
                    Scheme::Propose => {
                        events.extend((1..=self.tokens).map(|token| Event::Begin(number, token)));
                    }
                    Scheme::CountAndMax => events.push(Event::Begin(number, 0)),
                },
                Phase::Asking { .. } => events.push(Event::Stop(number)),
                Phase::Holding { .. } => {
                    events.push(Event::Stop(number));
                    let nodes = if self.fills { self.nodes } else { 0 };
                    events.extend((0..nodes).map(|node| Event::FillIn(number, node)));
                }
            }
        }
        for message in &state.network {
            events.push(Event::Arrive(message.clone()));
        }
        for (number, node) in state.nodes.iter().enumerate() {
            if node.holder.is_some_and(|owner| !state.is_at_it(owner)) {
                events.push(Event::Free(number));
            }
            if node.votes && state.losses < self.losses {
                events.push(Event::Lose(number));
            }
            if !node.votes && !node.waits_for.iter().any(|owner| state.is_at_it(*owner)) {
                let told = (0..1 << self.nodes).filter(|set| {
                    let voting = |one: usize| set & (1 << one) == 0 || state.nodes[one].votes;
                    self.is_majority(*set) && (0..self.nodes).all(voting)
                });
                events.extend(told.map(|set| Event::LetIn(number, set)));
            }
        }
    }

    fn next_state(&self, before: &State, event: Event) -> Option<State> {
        let mut state = before.clone();
        match event {
            Event::Begin(number, token) => {
                state.attempts += 1;
                let client = &mut state.clients[number];
                client.phase = Phase::Asking {
                    token,
                    floor: state.granted.last().copied().unwrap_or(0),
                    grants: 0,
                };
                let owner = (number, client.attempt);
                let ask = |node| Message::Ask { owner, node, token };
                state.network.extend((0..self.nodes).map(ask));
            }
            Event::Stop(number) => {
                let client = &mut state.clients[number];
                client.attempt += 1;
                client.phase = Phase::Idle;
            }
            Event::FillIn(number, node) => {
                let client = &state.clients[number];
                let Phase::Holding { token } = client.phase else {
                    return None;
                };
                let owner = (number, client.attempt);
                let new = state.network.insert(Message::Fill { owner, node, token });
                if !new || state.nodes[node].holder.is_some() {
                    return None;
                }
            }
            Event::Arrive(message) => {
                state.network.remove(&message);
                match message {
                    Message::Ask { owner, node, token } => {
                        let granted = self.decide(&mut state.nodes[node], owner, token);
                        let answer = |token| Message::Grant { owner, node, token };
                        state.network.extend(granted.map(answer));
                    }
                    Message::Grant { owner, node, token } => {
                        self.hear(&mut state, owner, node, token);
                    }
                    Message::Fill { owner, node, token } => {
                        let node = &mut state.nodes[node];
                        if node.votes && node.holder.is_none() {
                            node.holder = Some(owner);
                            node.highest = node.highest.max(token);
                        }
                    }
                }
            }
            Event::Free(node) => state.nodes[node].holder = None,
            Event::Lose(node) => {
                state.losses += 1;
                state.nodes[node] = Node {
                    holder: None,
                    highest: 0,
                    votes: self.restart == Restart::AtOnce,
                    waits_for: state.at_it().collect(),
                };
            }
            Event::LetIn(node, told) => {
                let told = (0..self.nodes).filter(|one| told & (1 << one) != 0);
                let floor = told.map(|one| state.nodes[one].highest).max()?;
                state.nodes[node].highest = floor;
                state.nodes[node].votes = true;
                state.nodes[node].waits_for.clear();
            }
        }
        state.forget_unheard();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder at a time", |_, state: &State| {
                state.holders() <= 1
            }),
            Property::always("no token twice", |_, state: &State| !state.token_twice),
            Property::always("tokens rise", |_, state: &State| !state.token_fell),
            Property::sometimes("two succeed", |_, state: &State| state.acquisitions >= 2),
        ]
    }
}
