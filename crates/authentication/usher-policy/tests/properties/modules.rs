//! Blocks of modules of mandatory access control, built from the model's side.

use usher_policy::mac::bsdextended::{AccessRule, AccountRange, Membership, RuleSubject};
use usher_policy::mac::ifoff::IfOff;
use usher_policy::mac::portacl::{PortAcl, PortPermit};
use usher_policy::mac::seeotheruids::SeeOtherUids;
use usher_policy::mac::te::{AllowedWhat, Class, TypeEnforcement};
use usher_policy::mac::{AccountId, FrameworkSettings, MacBlock, ModuleSettings};
use usher_policy::{Origin, Setting, Written};

use super::policies::Choices;

/// Blocks of modules, with and without rules.
pub fn mac(choices: &Choices) -> Vec<MacBlock> {
    let number = choices.number.min(u32::MAX - 2);
    let users = Membership {
        not: choices.flags[2],
        accounts: vec![
            AccountRange::Name("alice".to_owned()),
            AccountRange::Numbers(number, number + 1),
        ],
    };
    let rule = AccessRule {
        subject: RuleSubject {
            users: Some(users),
            groups: None,
        },
        ..AccessRule::default()
    };
    let framework = FrameworkSettings {
        multilabel: ["/srv".to_owned(), format!("/home/{number}")].into(),
        specification: choices.flags[0]
            .then(|| (format!("/etc/usher/{number}.mac"), Origin::default())),
        interfaces: [(
            format!("eth{}", number % 100),
            "biba/high,mls/low".parse().expect("a label"),
        )]
        .into(),
        families: ["vsock".to_owned()].into(),
    };
    let permit = PortPermit {
        port: number as u16,
        is_udp: choices.flags[2],
        is_group: choices.flags[0],
        account: AccountId::Number(number),
    };
    let ports = PortAcl {
        permits: [(permit, Origin::default())].into(),
        suser_exempt: choices.flags[1],
        ..PortAcl::default()
    };
    let exempt = SeeOtherUids {
        specificgid: Some((AccountId::Number(number), Origin::default())),
        suser_privileged: choices.flags[1],
        ..SeeOtherUids::default()
    };
    let silence = IfOff {
        loopback: choices.flags[0],
        interfaces: [(format!("eth{}", number % 100), choices.flags[2])].into(),
        ..IfOff::default()
    };
    let name = |text: &str| text.parse().expect("a name");
    let what = AllowedWhat {
        domain: name("imapd"),
        object: name("self"),
        class: Class::File,
    };
    let types = TypeEnforcement {
        domains: [(name("imapd"), Origin::default())].into(),
        allow: [(what, (["read"].into(), Origin::default()))].into(),
        ..TypeEnforcement::default()
    };
    let declared = vec![Setting {
        keyword: "exempt".to_owned(),
        values: vec![
            vec![Written::Word("alice".to_owned())],
            vec![Written::Text("a \"word\"".to_owned())],
        ],
        origin: Origin::default(),
    }];
    let blocks = [
        ("te", ModuleSettings::Te(types)),
        ("portacl", ModuleSettings::Portacl(ports)),
        ("seeotheruids", ModuleSettings::Seeotheruids(exempt)),
        ("bsdextended", ModuleSettings::Bsdextended(vec![rule])),
        ("ifoff", ModuleSettings::Ifoff(silence)),
        ("none", ModuleSettings::Nothing),
        ("sample", ModuleSettings::Declared(declared)),
        ("framework", ModuleSettings::Framework(framework)),
    ];
    let blocks = blocks.into_iter().zip(choices.flags.into_iter().cycle());
    let blocks = blocks.filter(|(_, there)| *there);
    blocks
        .map(|((module, settings), _)| MacBlock {
            module: module.parse().expect("a name"),
            settings,
            origin: Origin::default(),
        })
        .collect()
}
