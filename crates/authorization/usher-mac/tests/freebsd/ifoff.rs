//! The module `ifoff`.

use std::path::PathBuf;
use std::sync::OnceLock;

use proptest::prelude::*;
use usher_mac::{EntryPoint, Error, Names, Settings};
use usher_mac_blocks::ifoff::IfOff;

use crate::EPERM;
use crate::asked::{Process, Question, ask, words};

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| crate::compiled::compile("freebsd/ifoff.c"))
}

/// The network namespace that the names of the policy are about.
const HOST: u32 = 7;

/// An interface as the framework reads it; number 0: none.
#[derive(Debug, Clone, Default)]
struct Interface {
    number: u32,
    network: u32,
    name: &'static str,
}

/// An act of a process with a socket, or a packet.
#[derive(Debug, Clone)]
struct Act {
    family: u32,
    kind: u32,
    protocol: u32,
    option: (u32, u32),
    receives: bool,
    interface: Interface,
    bound: Interface,
}

/// Whether an interface is on, by usher-mac-ifoff(7).
fn is_on(settings: &IfOff, interface: &Interface) -> bool {
    match interface {
        Interface { number: 0, .. } => false,
        Interface { number: 1, .. } => settings.loopback,
        Interface { network, name, .. } => {
            let named = settings.interfaces.get(*name);
            let named = named.filter(|_| *network == HOST);
            *named.unwrap_or(&settings.others)
        }
    }
}

/// Whether the act is permitted, by usher-mac-ifoff(7).
fn permits(settings: &IfOff, point: EntryPoint, act: &Act) -> bool {
    let silences_none =
        settings.loopback && settings.others && settings.interfaces.values().all(|is_on| *is_on);
    let captures_all = settings.capture || silences_none;
    let captures = |interface: &Interface| captures_all || is_on(settings, interface);
    let is_packet_socket = act.family == 17;
    match point {
        EntryPoint::SocketDeliver if act.interface.number == 0 => true,
        EntryPoint::InterfaceReceive
        | EntryPoint::InterfaceSend
        | EntryPoint::InterfaceTransmit
        | EntryPoint::SocketDeliver => is_on(settings, &act.interface),
        EntryPoint::SocketBind if act.family == 44 => is_on(settings, &act.interface),
        _ if !is_packet_socket => true,
        EntryPoint::SocketCreate => captures_all || act.protocol == 0 && act.kind != 10,
        EntryPoint::SocketBind => {
            captures(&act.interface) && (!act.receives || captures(&act.bound))
        }
        EntryPoint::SocketSendmsg => act.kind == 10 || is_on(settings, &act.interface),
        EntryPoint::SocketRecvmsg => captures(&act.interface),
        EntryPoint::SocketSetsockopt => act.option != (263, 5) || captures(&act.interface),
        other => unreachable!("{other}"),
    }
}

fn request(point: EntryPoint, act: &Act) -> Vec<u8> {
    let of = |interface: &Interface| {
        let mut name = [0; 16];
        name[..interface.name.len()].copy_from_slice(interface.name.as_bytes());
        // An interface that is not there has neither number nor network.
        let there = words(&[interface.number, interface.network]);
        [there, name.to_vec()].concat()
    };
    let socket = words(&[act.family, act.kind, act.protocol]);
    match point {
        EntryPoint::SocketBind | EntryPoint::SocketSendmsg => {
            let address = words(&[0, 0, 0, 0, 0, act.family, act.receives.into()]);
            [socket, address, of(&act.interface), of(&act.bound)].concat()
        }
        EntryPoint::SocketCreate | EntryPoint::SocketRecvmsg | EntryPoint::SocketSetsockopt => {
            let (level, option) = act.option;
            [socket, words(&[0, level, option]), of(&act.interface)].concat()
        }
        _ => [socket, words(&[1000]), of(&act.interface)].concat(),
    }
}

fn interface() -> impl Strategy<Value = Interface> {
    let name = prop::sample::select(vec!["eth0", "eth1", "eth10", "a-name-of-15-by", "lo"]);
    let number = prop::sample::select(vec![0, 1, 2, 3, 1 << 20]);
    let network = prop::sample::select(vec![HOST, HOST, 8]);
    (number, network, name).prop_map(|(number, network, name)| match number {
        0 => Interface::default(),
        number => Interface {
            number,
            network,
            name,
        },
    })
}

fn settings() -> impl Strategy<Value = IfOff> {
    let name = prop::sample::select(vec!["eth0", "eth1", "a-name-of-15-by", "eth"]);
    let interfaces = prop::collection::btree_map(name.prop_map(str::to_owned), any::<bool>(), 0..4);
    (any::<[bool; 3]>(), interfaces).prop_map(|([loopback, others, capture], interfaces)| IfOff {
        loopback,
        interfaces,
        others,
        capture,
    })
}

fn act() -> impl Strategy<Value = Act> {
    let family = prop::sample::select(vec![17, 17, 17, 44, 2, 10, 1, 16]);
    let kind = prop::sample::select(vec![1, 2, 3, 10]);
    let protocol = prop::sample::select(vec![0, 0x300, 0x8]);
    let option = (
        prop::sample::select(vec![263, 263, 1]),
        prop::sample::select(vec![5, 5, 13, 20]),
    );
    let socket = (family, kind, protocol, option, any::<bool>());
    (socket, interface(), interface()).prop_map(|(socket, interface, bound)| {
        let (family, kind, protocol, option, receives) = socket;
        Act {
            family,
            kind,
            protocol,
            option,
            receives,
            interface,
            bound,
        }
    })
}

const POINTS: [EntryPoint; 9] = [
    EntryPoint::InterfaceReceive,
    EntryPoint::InterfaceSend,
    EntryPoint::InterfaceTransmit,
    EntryPoint::SocketDeliver,
    EntryPoint::SocketCreate,
    EntryPoint::SocketBind,
    EntryPoint::SocketSendmsg,
    EntryPoint::SocketRecvmsg,
    EntryPoint::SocketSetsockopt,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    // Threat model: M33
    #[test]
    fn ifoff_decides_as_its_model(
        settings in settings(),
        acts in prop::collection::vec(act(), 4),
    ) {
        let process = Process::default();
        let cases: Vec<_> = acts
            .iter()
            .flat_map(|act| POINTS.map(|point| (point, act)))
            .collect();
        let questions: Vec<_> = cases.iter().map(|(point, act)| Question {
            point: *point,
            process: &process,
            request: request(*point, act),
            labels: Default::default(),
        }).collect();
        let names = Names { network: HOST, ..Names::default() };
        let encoded = Settings::Ifoff(settings.clone(), names).encode().unwrap();
        let answers = ask(program(), &encoded, &questions);
        for ((point, act), (answer, _)) in cases.iter().zip(answers) {
            let is_permitted = permits(&settings, *point, act);
            let expected = match (is_permitted, point) {
                (true, _) => 0,
                // The kernel takes 1 for a refusal there.
                (false, EntryPoint::InterfaceTransmit) => 1,
                (false, _) => EPERM,
            };
            prop_assert_eq!(answer, expected, "{} {:?}", point, act);
        }
    }
}

#[test]
fn the_module_holds_sixty_four_switches() {
    let encode = |names: Vec<String>| {
        let interfaces = names.into_iter().map(|name| (name, true)).collect();
        let settings = IfOff {
            interfaces,
            ..IfOff::default()
        };
        Settings::Ifoff(settings, Names::default()).encode()
    };
    let many = |count: usize| (0..count).map(|number| format!("eth{number}")).collect();
    assert!(encode(many(64)).is_ok());
    let error = encode(many(65)).unwrap_err();
    assert!(matches!(error, Error::TooManySwitches(65)), "{error}");
    assert!(encode(vec!["e".repeat(15)]).is_ok());
    for name in [String::new(), "e".repeat(16)] {
        let error = encode(vec![name]).unwrap_err();
        assert!(matches!(error, Error::InterfaceName(_)), "{error}");
    }
}
