//! The checker visits all states of the model: with all mends no connection is served as another
//! user's, and without each of them it shows how one was.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stateright::{Checker, Expectation, Model};
use usher_model::entry::TRANSITIONS;
use usher_model::state::{Daemon, Form, Kind, Plan};
use usher_model::{Mends, Scene, Step, WHO_IS_SERVED, table, told};

const ALICE: u8 = 0;
const BOB: u8 = 1;
const CAROL: u8 = 2;

const fn plan(user: u8, kind: Kind) -> Plan {
    Plan {
        user,
        kind,
        port: 0,
        form: Form::Read,
    }
}

const fn unread(user: u8, kind: Kind) -> Plan {
    Plan {
        form: Form::Unread,
        ..plan(user, kind)
    }
}

fn scene(plans: &[Plan], deaths: u8, cookies: bool) -> Scene {
    Scene {
        deaths,
        cookies,
        ..Scene::new(plans)
    }
}

/// Visits all states: none shows a fault, and some show every expected success.
#[track_caller]
fn holds(scene: Scene) {
    let plans = scene.plans.clone();
    let checker = scene.checker().threads(2).spawn_bfs().join();
    println!("{:8} states: {plans:?}", checker.unique_state_count());
    for property in checker.model().properties() {
        let found = checker.discovery(property.name);
        if property.expectation == Expectation::Sometimes {
            assert!(found.is_some(), "never: {}", property.name);
        } else if let Some(path) = found {
            let last = format!("{:#?}", path.last_state());
            panic!("{}:\n{}\n{last}", property.name, told(&path.into_actions()));
        }
    }
}

/// Finds and prints the shortest path to a connection in the wrong queue.
#[track_caller]
fn fails(scene: Scene) -> Vec<Step> {
    // One thread, so that the shortest path is found.
    let checker = scene.checker().threads(1).spawn_bfs().join();
    let path = checker.discovery(WHO_IS_SERVED).expect("no counterexample");
    let steps = path.into_actions();
    println!("{}", told(&steps));
    steps
}

/// Both with and without SYN cookies.
const WAYS: [bool; 2] = [false, true];

#[test]
fn two_connections_and_two_deaths() {
    for cookies in WAYS {
        for (first, second) in [
            (Kind::Announced, Kind::Token),
            (Kind::Announced, Kind::Announced),
            (Kind::Token, Kind::Announced),
            (Kind::Announced, Kind::Stranger),
            (Kind::Token, Kind::Stranger),
            (Kind::Token, Kind::Copy(0)),
        ] {
            let plans = [plan(ALICE, first), plan(BOB, second)];
            holds(scene(&plans, if cookies { 1 } else { 2 }, cookies));
        }
    }
}

#[test]
fn three_users_one_after_another() {
    for cookies in WAYS {
        for kinds in [
            [Kind::Announced, Kind::Token, Kind::Stranger],
            [Kind::Token, Kind::Token, Kind::Announced],
            [Kind::Token, Kind::Token, Kind::Copy(0)],
        ] {
            let users = [ALICE, BOB, CAROL];
            let plans = [0, 1, 2].map(|place| plan(users[place], kinds[place]));
            holds(scene(&plans, 0, cookies));
        }
    }
}

#[test]
fn three_users_and_a_death() {
    let plans = [
        plan(ALICE, Kind::Token),
        plan(BOB, Kind::Token),
        plan(CAROL, Kind::Announced),
    ];
    holds(scene(&plans, 1, false));
}

#[test]
fn two_ports_do_not_touch_each_other() {
    let second = Plan {
        port: 1,
        ..plan(BOB, Kind::Token)
    };
    let plans = [plan(ALICE, Kind::Announced), second];
    holds(Scene {
        ports: 2,
        ..scene(&plans, 1, false)
    });
}

#[test]
fn syns_that_are_not_read_take_nothing_over() {
    for cookies in WAYS {
        let plans = [plan(ALICE, Kind::Token), unread(BOB, Kind::Stranger)];
        holds(scene(&plans, 1, cookies));
        // An announced connection whose SYN is not read may lose its entry to a late copy of
        // another's SYN. It is refused or cut then, and never another's.
        let plans = [plan(ALICE, Kind::Token), unread(BOB, Kind::Announced)];
        let checker = scene(&plans, 0, cookies).checker().spawn_bfs().join();
        assert!(checker.discovery(WHO_IS_SERVED).is_none());
        assert!(
            checker
                .discovery("the last one is served after another")
                .is_some()
        );
    }
}

#[test]
fn a_killed_signer_gave_alices_token_to_bobs_queue() {
    let plans = [plan(BOB, Kind::Announced), plan(ALICE, Kind::Token)];
    let before = Mends {
        gates: false,
        tokens_replace: false,
        first_syn_binds: false,
        channels: false,
        ..Mends::ALL
    };
    let steps = fails(Scene {
        mends: before,
        ..scene(&plans, 1, false)
    });
    let place = |step| steps.iter().position(|taken| *taken == step).unwrap();
    let died = place(Step::Dies(Daemon::Signer));
    assert!(
        died < place(Step::Bind(1)),
        "the port is another user's afterwards"
    );
    assert!(place(Step::Bind(1)) < place(Step::SynArrives(1)));
}

#[test]
fn without_gates_a_stranger_is_the_announcer() {
    let plans = [plan(BOB, Kind::Announced), plan(ALICE, Kind::Stranger)];
    fails(Scene {
        mends: Mends {
            gates: false,
            ..Mends::ALL
        },
        ..scene(&plans, 1, false)
    });
}

#[test]
fn an_unread_syn_took_a_tokens_entry_over() {
    let plans = [plan(ALICE, Kind::Token), unread(BOB, Kind::Stranger)];
    let before = Mends {
        readings: false,
        compared: false,
        ..Mends::ALL
    };
    let steps = fails(Scene {
        mends: before,
        ..scene(&plans, 0, false)
    });
    assert!(steps.contains(&Step::SynArrives(1)));
}

#[test]
fn without_numbers_a_late_ack_is_anothers() {
    let plans = [plan(ALICE, Kind::Token), plan(BOB, Kind::Token)];
    fails(Scene {
        mends: Mends {
            numbers: false,
            ..Mends::ALL
        },
        ..scene(&plans, 0, true)
    });
}

/// A gap that remains, as the row says.
// Threat model: A49
#[test]
fn copies_that_outlive_a_cookies_connection_open_it_anew() {
    let plans = [plan(ALICE, Kind::Token), plan(BOB, Kind::Announced)];
    fails(Scene {
        late_copies: true,
        ..scene(&plans, 0, true)
    });
}

#[test]
fn the_transitions_are_those_of_the_table_in_the_architecture() {
    let seen = Arc::new(AtomicU32::new(0));
    for (plans, deaths, cookies) in [
        ([plan(ALICE, Kind::Token), plan(BOB, Kind::Token)], 0, true),
        (
            [plan(ALICE, Kind::Announced), plan(BOB, Kind::Token)],
            1,
            false,
        ),
        (
            [plan(ALICE, Kind::Token), plan(BOB, Kind::Announced)],
            0,
            false,
        ),
    ] {
        let scene = Scene {
            seen: Arc::clone(&seen),
            ..scene(&plans, deaths, cookies)
        };
        scene.checker().spawn_bfs().join();
    }
    let seen = seen.load(Ordering::Relaxed);
    for (place, transition) in TRANSITIONS.iter().enumerate() {
        assert!(seen & 1 << place != 0, "never: {transition:?}");
    }
    let architecture = include_str!("../../../ARCHITECTURE.md");
    let table = table();
    assert!(
        architecture.contains(&table),
        "ARCHITECTURE.md has to have:\n{table}"
    );
}
