//! The tables of policies that tests put in force, and their SAs.

use usher_ipsec::MarkMask;
use usher_protection::{Class, Item, Level, ProgramName, Rules, Tables, Treatment};

use super::{B, B_TOO, B6, ENCRYPTION, GOVERNED};

/// A policy that encrypts traffic with host B and trusts its second address. All other hosts are
/// untrusted.
pub fn secure() -> Tables {
    tables(&[(
        GOVERNED,
        vec![
            ("10.1.0.0/24", mandatory(ENCRYPTION)),
            ("10.1.0.3/32", To::Trusted),
            ("fd01::/64", mandatory(ENCRYPTION)),
            ("fd01::3/128", To::Trusted),
        ],
    )])
}

/// Treatments by name, for networks.
#[derive(Clone)]
pub enum To {
    Trusted,
    Untrusted,
    /// Local port, remote port (0: any), class, level.
    Protected(Vec<(u16, u16, Class, Level)>),
}

pub fn mandatory(class: Class) -> To {
    To::Protected(vec![(0, 0, class, Level::Mandatory)])
}

pub fn optional(class: Class) -> To {
    To::Protected(vec![(0, 0, class, Level::Optional)])
}

/// Tables of applications, each with one program and its networks; those that are left out are
/// discarded. Signatures as `usher-protection` makes them. SAs can come with both hosts.
pub fn tables(applications: &[(&str, Vec<(&str, To)>)]) -> Tables {
    let hosts = ["10.1.0.1", B, B_TOO, "fd01::1", B6, "fd01::3"];
    let mut tables = Tables {
        peers: hosts.map(|host| host.parse().unwrap()).into(),
        ..Tables::default()
    };
    for (program, networks) in applications {
        let mut all = vec![
            ("0.0.0.0/0".parse().unwrap(), Treatment::Discard),
            ("::/0".parse().unwrap(), Treatment::Discard),
        ];
        for (network, to) in networks {
            let network: ipnet::IpNet = network.parse().unwrap();
            let treatment = match to {
                To::Trusted => Treatment::Bypass,
                To::Untrusted => Treatment::Discard,
                To::Protected(items) => Treatment::Items(list(&mut tables, items)),
            };
            all.retain(|(known, _)| *known != network);
            all.push((network, treatment));
        }
        all.sort();
        add(&mut tables, program, all);
    }
    tables
}

fn list(tables: &mut Tables, items: &[(u16, u16, Class, Level)]) -> usize {
    let mut list = Vec::new();
    for &(local, remote, class, level) in items {
        let known = tables.classes.iter().position(|one| *one == (class, level));
        list.push(Item {
            local_port: local.try_into().ok(),
            remote_port: remote.try_into().ok(),
            class: known.unwrap_or_else(|| {
                tables.classes.push((class, level));
                tables.classes.len() - 1
            }),
        });
    }
    let known = tables.item_lists.iter().position(|one| *one == list);
    known.unwrap_or_else(|| {
        tables.item_lists.push(list);
        tables.item_lists.len() - 1
    })
}

/// Adds an application. It has a signature of its own unless all of its traffic is treated alike.
pub fn add(tables: &mut Tables, program: &str, networks: Vec<(ipnet::IpNet, Treatment)>) {
    let plain = |treatment: &Treatment| match treatment {
        Treatment::Items(list) => {
            let list = &tables.item_lists[*list];
            list[0].local_port.is_none() && list[0].remote_port.is_none()
        }
        Treatment::Bypass | Treatment::Discard => true,
    };
    let same = networks.iter().all(|(_, one)| *one == networks[0].1) && plain(&networks[0].1);
    let known = tables
        .applications
        .iter()
        .find(|one| one.networks == networks);
    let next = tables.applications.iter().map(|one| one.signature).max();
    let signature = match known {
        _ if same => 0,
        Some(known) => known.signature,
        None => next.unwrap_or(0) + 1,
    };
    let program = if program.starts_with('/') {
        ProgramName::Path(program.to_owned())
    } else {
        ProgramName::Name(program.to_owned())
    };
    tables.applications.push(Rules {
        programs: vec![program],
        signature,
        networks,
    });
}

/// The class mark of a class at a level.
pub fn mark(class: Class, level: Level) -> u32 {
    MarkMask::default().class_mark(class, level)
}

/// The line of [`super::batch`] that adds an SA of ESP, with a key of this kind of AES-GCM.
pub fn sa(class: Class, algorithm: &str, [from, to]: [&str; 2], spi: u32) -> String {
    let mark = mark(class, Level::Mandatory);
    let reqid = usher_ipsec::reqid(class);
    format!(
        "xfrm state add src {from} dst {to} proto esp spi {spi} mode transport reqid {reqid} \
         aead {algorithm} 0x000102030405060708090a0b0c0d0e0f10111213 128 \
         output-mark {mark:#x} mask 0xf00000\n"
    )
}
