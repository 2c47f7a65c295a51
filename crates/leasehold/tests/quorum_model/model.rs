//! The protocol as a state machine: states, events and transitions.

use std::collections::BTreeSet;

use stateright::{Model, Property};

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// The client proposes a token, and a node grants it only above all tokens
    /// it granted before. This is the library's scheme.
    Propose,
    /// Every node has a counter, and the client uses the maximum. This is
    /// unsafe.
    CountAndMax,
}

/// What a node does after a restart without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// It waits until every active owner has stopped, and then votes only above
    /// the tokens that a majority knows. This is the library's scheme.
    Quarantine,
    /// It votes immediately. This is unsafe.
    Immediate,
}

/// The parameters of the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quorum {
    pub(crate) scheme: Scheme,
    pub(crate) restart: Restart,
    pub(crate) nodes: usize,
    pub(crate) clients: usize,
    /// The number of attempts of all clients together.
    pub(crate) attempts: u8,
    /// The highest token; tokens start at 1.
    pub(crate) tokens: u8,
    /// The number of times that nodes lose their data, all of them together.
    pub(crate) losses: u8,
    /// Whether holders write their lock to nodes that missed it.
    pub(crate) repairs: bool,
}

/// One acquisition: a client and its attempt.
type Owner = (usize, u8);

/// A set of nodes, with one bit per node.
type Nodes = u8;

/// A global state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    nodes: Vec<Node>,
    clients: Vec<Client>,
    network: BTreeSet<Message>,
    attempts: u8,
    losses: u8,
    /// The tokens acquired so far.
    granted: BTreeSet<u8>,
    pub(crate) acquisitions: u8,
    /// Whether a token was acquired twice.
    pub(crate) token_duplicated: bool,
    /// Whether a token was not above those acquired before its request.
    pub(crate) token_decreased: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    holder: Option<Owner>,
    /// The highest token granted.
    highest: u8,
    votes: bool,
    /// The active owners when the node lost its data. It waits until they have
    /// stopped, as the maximum lease guarantees.
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
    /// Has sent requests to all nodes. Those in `grants` granted the lock.
    /// `floor` was the highest token at the start.
    Requesting {
        token: u8,
        floor: u8,
        grants: Nodes,
    },
    /// Relies on the lock.
    Holding {
        token: u8,
    },
}

/// A message in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Message {
    Request {
        owner: Owner,
        node: usize,
        token: u8,
    },
    Grant {
        owner: Owner,
        node: usize,
        token: u8,
    },
    /// A holder writes its lock to a node that missed it.
    Repair {
        owner: Owner,
        node: usize,
        token: u8,
    },
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A client sends requests with this token to all nodes.
    Begin(usize, u8),
    /// A message arrives. A lost message never does.
    Arrive(Message),
    /// A client gives up, releases the lock, or its lease expires.
    Stop(usize),
    /// A client sends a repair to a node.
    Repair(usize, usize),
    /// A node forgets a holder that has stopped.
    Expire(usize),
    /// A node restarts without its data.
    Restart(usize),
    /// A node rejoins with what these nodes know.
    Rejoin(usize, Nodes),
}

impl Quorum {
    fn is_majority(&self, nodes: Nodes) -> bool {
        nodes.count_ones() as usize > self.nodes / 2
    }

    /// Handles a grant. The client holds the lock once a majority granted it.
    fn handle_grant(&self, state: &mut State, owner: Owner, node: usize, granted: u8) {
        let client = &mut state.clients[owner.0];
        let Phase::Requesting {
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
            state.token_decreased |= token <= floor;
            state.token_duplicated |= !state.granted.insert(token);
            state.acquisitions += 1;
        }
    }

    /// Handles a request at a node. Returns the granted token, if any.
    fn handle_request(&self, node: &mut Node, owner: Owner, token: u8) -> Option<u8> {
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
    /// Returns whether `owner` requests the lock or relies on it.
    fn is_active(&self, owner: Owner) -> bool {
        let client = &self.clients[owner.0];
        let active = matches!(
            client.phase,
            Phase::Requesting { .. } | Phase::Holding { .. }
        );
        active && client.attempt == owner.1
    }

    /// Returns all owners that request the lock or rely on it.
    fn active_owners(&self) -> impl Iterator<Item = Owner> {
        let owners = self.clients.iter().enumerate();
        let owners = owners.map(|(number, client)| (number, client.attempt));
        owners.filter(|owner| self.is_active(*owner))
    }

    /// Removes grants that their client would ignore, to reduce the state
    /// space.
    fn prune_ignored(&mut self) {
        let mut network = std::mem::take(&mut self.network);
        network.retain(|message| match message {
            Message::Grant { owner, .. } => {
                let client = &self.clients[owner.0];
                client.attempt == owner.1 && matches!(client.phase, Phase::Requesting { .. })
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
            token_duplicated: false,
            token_decreased: false,
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
                Phase::Requesting { .. } => events.push(Event::Stop(number)),
                Phase::Holding { .. } => {
                    events.push(Event::Stop(number));
                    let nodes = if self.repairs { self.nodes } else { 0 };
                    events.extend((0..nodes).map(|node| Event::Repair(number, node)));
                }
            }
        }
        for message in &state.network {
            events.push(Event::Arrive(message.clone()));
        }
        for (number, node) in state.nodes.iter().enumerate() {
            if node.holder.is_some_and(|owner| !state.is_active(owner)) {
                events.push(Event::Expire(number));
            }
            if node.votes && state.losses < self.losses {
                events.push(Event::Restart(number));
            }
            if !node.votes && !node.waits_for.iter().any(|owner| state.is_active(*owner)) {
                let sources = (0..1 << self.nodes).filter(|set| {
                    let voting = |one: usize| set & (1 << one) == 0 || state.nodes[one].votes;
                    self.is_majority(*set) && (0..self.nodes).all(voting)
                });
                events.extend(sources.map(|set| Event::Rejoin(number, set)));
            }
        }
    }

    fn next_state(&self, before: &State, event: Event) -> Option<State> {
        let mut state = before.clone();
        match event {
            Event::Begin(number, token) => {
                state.attempts += 1;
                let client = &mut state.clients[number];
                client.phase = Phase::Requesting {
                    token,
                    floor: state.granted.last().copied().unwrap_or(0),
                    grants: 0,
                };
                let owner = (number, client.attempt);
                let request = |node| Message::Request { owner, node, token };
                state.network.extend((0..self.nodes).map(request));
            }
            Event::Stop(number) => {
                let client = &mut state.clients[number];
                client.attempt += 1;
                client.phase = Phase::Idle;
            }
            Event::Repair(number, node) => {
                let client = &state.clients[number];
                let Phase::Holding { token } = client.phase else {
                    return None;
                };
                let owner = (number, client.attempt);
                let new = state.network.insert(Message::Repair { owner, node, token });
                if !new || state.nodes[node].holder.is_some() {
                    return None;
                }
            }
            Event::Arrive(message) => {
                state.network.remove(&message);
                match message {
                    Message::Request { owner, node, token } => {
                        let granted = self.handle_request(&mut state.nodes[node], owner, token);
                        let grant = |token| Message::Grant { owner, node, token };
                        state.network.extend(granted.map(grant));
                    }
                    Message::Grant { owner, node, token } => {
                        self.handle_grant(&mut state, owner, node, token);
                    }
                    Message::Repair { owner, node, token } => {
                        let node = &mut state.nodes[node];
                        if node.votes && node.holder.is_none() {
                            node.holder = Some(owner);
                            node.highest = node.highest.max(token);
                        }
                    }
                }
            }
            Event::Expire(node) => state.nodes[node].holder = None,
            Event::Restart(node) => {
                state.losses += 1;
                state.nodes[node] = Node {
                    holder: None,
                    highest: 0,
                    votes: self.restart == Restart::Immediate,
                    waits_for: state.active_owners().collect(),
                };
            }
            Event::Rejoin(node, sources) => {
                let sources = (0..self.nodes).filter(|one| sources & (1 << one) != 0);
                let floor = sources.map(|one| state.nodes[one].highest).max()?;
                state.nodes[node].highest = floor;
                state.nodes[node].votes = true;
                state.nodes[node].waits_for.clear();
            }
        }
        state.prune_ignored();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder at a time", |_, state: &State| {
                state.holders() <= 1
            }),
            Property::always("tokens are unique", |_, state: &State| {
                !state.token_duplicated
            }),
            Property::always("tokens increase", |_, state: &State| !state.token_decreased),
            Property::sometimes("two succeed", |_, state: &State| state.acquisitions >= 2),
        ]
    }
}
