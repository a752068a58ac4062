//! The module `portacl`.

use std::path::PathBuf;
use std::sync::OnceLock;

use proptest::prelude::*;
use usher_language::Origin;
use usher_mac::{EntryPoint, Error, Names, Settings};
use usher_mac_blocks::AccountId;
use usher_mac_blocks::portacl::{PortAcl, PortPermit};

use crate::EPERM;
use crate::asked::{Process, Question, ask, words};

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| crate::compiled::compile("freebsd/portacl.c"))
}

/// A socket, and the port to which it is to be bound.
#[derive(Debug, Clone)]
struct Binding {
    family: u32,
    kind: u32,
    protocol: u32,
    port: u16,
}

/// The answer to a binding by usher-mac-portacl(7).
fn model(settings: &PortAcl, process: &Process, binding: &Binding) -> i32 {
    let (euid, egid) = (process.uids[1], process.gids[1]);
    let is_udp = match (binding.family, binding.kind, binding.protocol) {
        (2 | 10, 3, _) | (2 | 10, _, 1 | 58) => return 0,
        (43, _, _) | (2 | 10, _, 6 | 256 | 262) => Some(false),
        (2 | 10, _, 17 | 136) => Some(true),
        (2 | 10 | 33, _, _) => None,
        _ => return 0,
    };
    let is_root = settings.suser_exempt && euid == 0;
    let is_free =
        binding.port > settings.port_high || settings.autoport_exempt && binding.port == 0;
    let permits = settings.permits.keys().any(|permit| {
        let is = |number: &u32| permit.account == AccountId::Number(*number);
        let holds = if permit.is_group {
            is(&egid) || process.groups.iter().any(is)
        } else {
            is(&euid)
        };
        holds && Some(permit.is_udp) == is_udp && permit.port == binding.port
    });
    // The module does not see the port of AF_RXRPC.
    if is_root || is_free && binding.family != 33 || permits {
        0
    } else {
        EPERM
    }
}

fn id() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0, 80, 1000])
}

fn port() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![0, 77, 1023, 1024, 7777, u16::MAX])
}

fn process() -> impl Strategy<Value = Process> {
    let ids = || [id(), id(), id(), id()];
    let groups = prop::collection::vec(id(), 0..3);
    let capabilities = prop::sample::select(vec![0, 1 << 10, u64::MAX]);
    (ids(), ids(), groups, capabilities).prop_map(|(uids, gids, groups, capabilities)| Process {
        uids,
        gids,
        groups,
        capabilities,
    })
}

fn permit() -> impl Strategy<Value = PortPermit> {
    (id(), any::<[bool; 2]>(), port()).prop_map(|(id, [is_group, is_udp], port)| PortPermit {
        port,
        is_udp,
        is_group,
        account: AccountId::Number(id),
    })
}

fn settings() -> impl Strategy<Value = PortAcl> {
    let permits = prop::collection::btree_map(permit(), Just(Origin::default()), 0..6);
    (permits, any::<[bool; 2]>(), port()).prop_map(|(permits, exempt, port_high)| PortAcl {
        permits,
        port_high,
        suser_exempt: exempt[0],
        autoport_exempt: exempt[1],
    })
}

fn binding() -> impl Strategy<Value = Binding> {
    let family = prop::sample::select(vec![2, 2, 10, 10, 1, 33, 43]);
    let protocol = prop::sample::select(vec![6, 6, 17, 17, 262, 256, 136, 132, 33, 1, 58, 0, 99]);
    let kind = prop::sample::select(vec![1, 1, 2, 3]);
    let binding = (family, kind, protocol, port());
    binding.prop_map(|(family, kind, protocol, port)| Binding {
        family,
        kind,
        protocol,
        port,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    // Threat model: M29
    #[test]
    fn portacl_decides_as_its_model(
        settings in settings(),
        cases in prop::collection::vec((process(), binding()), 4),
    ) {
        let questions: Vec<_> = cases.iter().map(|(process, binding)| {
            let Binding { family, kind, protocol, port } = *binding;
            // RxRPC's addresses are not read.
            let port = if family == 33 { 0 } else { port.into() };
            let mut request = words(&[family, kind, protocol, port]);
            request.extend([0; 16]);
            request.extend(words(&[family, 0]));
            let labels = Default::default();
            Question { point: EntryPoint::SocketBind, process, request, labels }
        }).collect();
        let encoded = Settings::Portacl(settings.clone(), Names::default()).encode().unwrap();
        let answers = ask(program(), &encoded, &questions);
        for ((process, binding), (answer, _)) in cases.iter().zip(answers) {
            prop_assert_eq!(answer, model(&settings, process, binding), "{:?} {:?}", process, binding);
        }
    }
}

// Threat model: M29
#[test]
fn addresses_in_options_of_sctp_are_roots() {
    let answer = |uid: u32, suser_exempt: bool, protocol: u32, option: [u32; 2]| {
        let process = Process {
            uids: [uid; 4],
            ..Process::default()
        };
        let settings = PortAcl {
            suser_exempt,
            ..PortAcl::default()
        };
        let question = Question {
            point: EntryPoint::SocketSetsockopt,
            process: &process,
            request: words(&[10, 1, protocol, 0, option[0], option[1]]),
            labels: Default::default(),
        };
        let encoded = Settings::Portacl(settings, Names::default())
            .encode()
            .unwrap();
        ask(program(), &encoded, &[question])[0].0
    };
    assert_eq!(answer(1000, true, 132, [132, 100]), EPERM);
    assert_eq!(answer(0, false, 132, [132, 100]), EPERM);
    for permitted in [
        answer(0, true, 132, [132, 100]),
        answer(1000, true, 132, [132, 101]),
        answer(1000, true, 6, [132, 100]),
        answer(1000, true, 132, [1, 100]),
    ] {
        assert_eq!(permitted, 0);
    }
}

#[test]
fn the_rule_after_the_256th_is_not_taken() {
    let encode = |count: u16| {
        let permits = (0..count).map(|port| PortPermit {
            port,
            is_udp: false,
            is_group: false,
            account: AccountId::Number(80),
        });
        let settings = PortAcl {
            permits: permits.map(|permit| (permit, Origin::default())).collect(),
            ..PortAcl::default()
        };
        Settings::Portacl(settings, Names::default()).encode()
    };
    encode(256).unwrap();
    let refused = encode(257).unwrap_err();
    assert!(matches!(refused, Error::TooManyPortRules(257)), "{refused}");
}
