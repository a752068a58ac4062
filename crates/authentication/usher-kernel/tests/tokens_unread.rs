//! SYNs of every form that a kernel accepts. Those that check_token reads may carry a token. No
//! SYN, read or not, takes over the entry of another SYN's token.

#[macro_use]
mod world;
mod forge;
mod wire;

use forge::*;
use usher_base::ConnectionTuple;
use usher_kernel::admission::{Admission, AdmissionState, Limits};
use usher_proto::TokenSlot;
use wire::{FORMS, Form, PLAIN, Wire, frames};
use world::*;

const LIMITS: Limits = Limits {
    sessions: 16,
    admissions: 4096,
    listeners: 16,
    tokens: 64,
};

/// The sequence numbers of the honest SYN and of the stranger's.
const OWN: u32 = 7_000;
const OTHERS: u32 = 90_000;

/// Options without meaning. They make a segment long enough for two IPv6 fragments, the first of
/// which must have the whole header.
const NO_TOKEN: [u8; 12] = [1; 12];

/// The service behind a wire, with Alice's tokens.
struct Scene {
    admission: Admission,
    checker: Checker,
    _alice: std::os::fd::OwnedFd,
    wire: Wire,
    chain: Chain,
    slot: TokenSlot,
}

impl Scene {
    fn set(world: &World) -> Self {
        let (admission, alice, checker) = serve(world, &LIMITS);
        let wire = Wire::laid();
        assert!(admission.attach_tokens().unwrap().is_empty());
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        Self {
            admission,
            checker,
            _alice: alice,
            wire,
            chain,
            slot,
        }
    }

    /// The connection and the token of a round.
    fn token(&self, round: u32, family: u8) -> (ConnectionTuple, [u8; 20]) {
        let connection = Wire::connection(family, 4000 + u16::try_from(round).unwrap());
        let option = self.chain.option(self.slot, round, &connection);
        (connection, option)
    }

    /// Sends a SYN and waits for its answer.
    fn syn(
        &self,
        form: &Form,
        connection: &ConnectionTuple,
        number: u32,
        options: &[u8],
    ) -> (u8, u32) {
        self.wire.send(form, connection, SYN, (number, 0), options);
        self.wire.answer(connection)
    }

    fn state(&self, connection: &ConnectionTuple) -> Option<AdmissionState> {
        row(&self.admission, connection).map(|row| row.state)
    }

    fn refused_unread(&self) -> u64 {
        self.admission.counters().unwrap().refused_unread
    }
}

/// The usual form of the family of `form`.
fn plain(form: &Form) -> &'static Form {
    &PLAIN[usize::from(form.family == 6)]
}

fn all() -> impl Iterator<Item = (&'static Form, u32)> {
    static ALL: [Form; 15] = FORMS;
    ALL.iter().chain(&PLAIN).zip(1..)
}

/// Pins this thread to its processor.
fn stay_here() {
    let mut set = rustix::thread::CpuSet::new();
    set.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

tests_of_tokens! {
    fn a_token_passes_in_every_form_that_is_read(world) {
        let scene = Scene::set(world);
        for (form, round) in all() {
            let (connection, option) = scene.token(round, form.family);
            let (flags, number) = scene.syn(form, &connection, OWN, &option);
            if form.is_read(world) {
                assert_eq!(flags, SYN | ACK, "{}", form.name);
                let numbers = (OWN + 1, number.wrapping_add(1));
                scene.wire.send(form, &connection, ACK, numbers, &NO_TOKEN);
                eventually("the handshake ends", || {
                    scene.state(&connection) == Some(AdmissionState::Established)
                });
            } else {
                assert_eq!(flags, RST | ACK, "{}", form.name);
                assert_eq!(scene.state(&connection), None, "{}", form.name);
                // Announced on the control channel, the same SYN passes.
                scene.admission.announce(&connection, &announced(ALICE)).unwrap();
                let (flags, _) = scene.syn(form, &connection, OWN, &NO_TOKEN);
                assert_eq!(flags, SYN | ACK, "{}", form.name);
            }
        }
    }

    // Threat model: A48
    fn no_form_of_syn_takes_over_a_token_not_yet_received(world) {
        let scene = Scene::set(world);
        for (form, round) in all() {
            let (connection, option) = scene.token(round, form.family);
            // The SYN is read at the interface, and lost behind it.
            for frame in frames(plain(form), &connection, SYN, (OWN, 0), &option) {
                scene.checker.run(&frame);
            }
            assert_eq!(scene.state(&connection), Some(AdmissionState::Announced));
            let before = scene.refused_unread();
            let (flags, _) = scene.syn(form, &connection, OTHERS, &NO_TOKEN);
            assert_eq!(flags, RST | ACK, "{}", form.name);
            // A SYN that was read ended the entry; one that was not left it to its owner.
            let owners = if form.is_read(world) { RST | ACK } else { SYN | ACK };
            assert_eq!(scene.refused_unread() - before, u64::from(!form.is_read(world)), "{}", form.name);
            let (flags, _) = scene.syn(plain(form), &connection, OWN, &option);
            assert_eq!(flags, owners, "{}", form.name);
        }
    }

    // Threat model: A48
    fn no_form_of_syn_takes_over_a_token_given_up(world) {
        let scene = Scene::set(world);
        for (form, round) in all() {
            let (connection, option) = scene.token(round, form.family);
            let (flags, _) = scene.syn(plain(form), &connection, OWN, &option);
            assert_eq!(flags, SYN | ACK);
            // The entry's owner abandons the connection, and a stranger gets the port.
            scene.wire.send(plain(form), &connection, RST, (OWN + 1, 0), &NO_TOKEN);
            let (flags, _) = scene.syn(form, &connection, OTHERS, &NO_TOKEN);
            assert_eq!(flags, RST | ACK, "{}", form.name);
            assert_ne!(scene.state(&connection), Some(AdmissionState::Established));
        }
    }

    fn a_syn_cookie_is_answered_by_a_packet_that_is_read(world) {
        std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
        let scene = Scene::set(world);
        for (form, round) in all() {
            let (connection, option) = scene.token(round, form.family);
            let (flags, number) = scene.syn(plain(form), &connection, OWN, &option);
            assert_eq!(flags, SYN | ACK);
            let numbers = (OWN + 1, number.wrapping_add(1));
            scene.wire.send(form, &connection, ACK, numbers, &NO_TOKEN);
            if form.is_read(world) {
                eventually("the handshake ends", || {
                    scene.state(&connection) == Some(AdmissionState::Established)
                });
            } else {
                assert_eq!(scene.wire.answer(&connection).0, RST, "{}", form.name);
            }
        }
    }

    // Threat model: A49
    fn a_late_answer_to_a_cookie_uses_no_other_entry(world) {
        std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
        let scene = Scene::set(world);
        let _bob = queue(&scene.admission, BOB, 16);
        // Alice's connection is answered by a cookie and abandoned. Then Bob gets her port.
        for (by_token, late, round) in [(false, true, 1), (false, false, 3), (true, true, 5), (true, false, 7)] {
            let (connection, option) = scene.token(round, 4);
            let (_, number) = scene.syn(&PLAIN[0], &connection, OWN, &option);
            let numbers = (OWN + 1, number.wrapping_add(1));
            if late {
                scene.admission.forget(&connection).unwrap();
                if by_token {
                    let next = scene.chain.option(scene.slot, round + 1, &connection);
                    for frame in frames(&PLAIN[0], &connection, SYN, (OTHERS, 0), &next) {
                        scene.checker.run(&frame);
                    }
                } else {
                    scene.admission.announce(&connection, &announced(BOB)).unwrap();
                }
            }
            scene.wire.send(&PLAIN[0], &connection, ACK, numbers, &[]);
            if late {
                assert_eq!(scene.wire.answer(&connection).0, RST);
                assert_eq!(scene.state(&connection), Some(AdmissionState::Announced));
            } else {
                eventually("the handshake ends", || {
                    scene.state(&connection) == Some(AdmissionState::Established)
                });
            }
        }
    }

    // Threat model: A48
    fn a_handshake_with_another_number_is_reported(world) {
        let scene = Scene::set(world);
        stop_reading(world);
        stay_here();
        for (number, round) in [(OTHERS, 1), (OWN, 2)] {
            let (connection, option) = scene.token(round, 4);
            // The filter is not attached where the second SYN arrives. The note about the first
            // one, a moment ago on this processor, lets its handshake begin.
            for frame in frames(&PLAIN[0], &connection, SYN, (OWN, 0), &option) {
                scene.checker.run(&frame);
            }
            let (flags, theirs) = scene.syn(&PLAIN[0], &connection, number, &NO_TOKEN);
            assert_eq!(flags, SYN | ACK);
            let numbers = (number + 1, theirs.wrapping_add(1));
            scene.wire.send(&PLAIN[0], &connection, ACK, numbers, &NO_TOKEN);
            if number == OWN {
                eventually("the handshake ends", || {
                    scene.state(&connection) == Some(AdmissionState::Established)
                });
            } else {
                eventually("it is reported", || {
                    scene.admission.drain_untracked().unwrap() == [connection]
                });
                assert_eq!(scene.state(&connection), Some(AdmissionState::SynReceived));
            }
        }
    }

    // Threat model: A48
    fn a_packet_that_was_not_seen_is_refused(world) {
        let scene = Scene::set(world);
        let (connection, option) = scene.token(1, 4);
        for frame in frames(&PLAIN[0], &connection, SYN, (OWN, 0), &option) {
            scene.checker.run(&frame);
        }
        // More packets than are remembered, on every processor, and then one that is missed.
        let others: Vec<_> = (0..40).map(|port| from_port(9000 + port)).collect();
        for cpu in 0..std::thread::available_parallelism().unwrap().get() {
            let mut set = rustix::thread::CpuSet::new();
            set.set(cpu);
            rustix::thread::sched_setaffinity(None, &set).unwrap();
            for other in &others {
                scene.checker.syn(other, &[]);
            }
        }
        stop_reading(world);
        let (flags, _) = scene.syn(&PLAIN[0], &connection, OWN, &option);
        assert_eq!((flags, scene.refused_unread()), (RST | ACK, 1));
        assert!(scene.admission.attach_tokens().unwrap().is_empty());
        let (flags, _) = scene.syn(&PLAIN[0], &connection, OWN, &option);
        assert_eq!(flags, SYN | ACK);
    }
}
