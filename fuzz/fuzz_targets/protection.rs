#![no_main]
//! Text of `application` blocks: of each packet at the ends of what a block names, the compiled
//! tables say what the text says, and so does the canonical form of the text.

use std::net::IpAddr;
use std::time::Duration;

use usher_policy::protection::{Application, Names, Traffic, Verdict, compile};
use usher_policy::{Peers, Source, parse};

/// The ends of the block's ranges, and an address of each family that is nowhere in particular.
fn peers(block: &Application) -> Vec<IpAddr> {
    let ranges = block.networks.iter().flat_map(|network| &network.addresses);
    let ends = ranges.flat_map(|range| [range.first(), range.last()]);
    let others = [IpAddr::from([198, 51, 100, 7]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7])];
    ends.take(64).chain(others).collect()
}

/// The ports that the block names, and one more.
fn ports(block: &Application) -> Vec<u16> {
    let items = block.protections.values().flat_map(|protection| &protection.items);
    let named = items.flat_map(|item| [item.local, item.remote]).flatten();
    named.map(|port| port.get()).take(8).chain([40000]).collect()
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let source = |text: &str| Source { name: "fuzz".into(), text: text.into() };
    let Ok(policy) = parse(&[source(text)]) else { return };
    let blocks = &policy.applications;
    let again = parse(&[source(&policy.to_text())]).expect("a policy's own text");
    assert_eq!(&again.applications, blocks);
    // Every second name has an answer.
    let mut names = Names::default();
    let networks = blocks.iter().flat_map(|block| &block.networks);
    for network in networks.step_by(2) {
        if let Peers::Name(name) = &network.peers {
            names.answer(name.clone(), [IpAddr::from([198, 51, 100, 7])], Duration::ZERO);
        }
    }
    let Ok(tables) = compile(blocks, &names, u16::MAX) else { return };
    for (number, block) in blocks.iter().enumerate() {
        let ports = ports(block);
        for peer in peers(block) {
            for (&local, &remote) in ports.iter().flat_map(|local| ports.iter().map(move |remote| (local, remote))) {
                let said = match block.traffic(&names, peer, local, remote) {
                    Traffic::Bypass => Verdict::Bypass,
                    Traffic::Discard => Verdict::Discard,
                    Traffic::Protect(item) => Verdict::Protect(item.class(), item.level),
                };
                assert_eq!(tables.treat(number, peer, local, remote), said, "{peer} {local} {remote}");
            }
        }
    }
});
