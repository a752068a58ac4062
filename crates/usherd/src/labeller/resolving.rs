//! Settings of the policy, and its services, to settings of the kernel: names of users, groups and file
//! systems become numbers.

use std::collections::BTreeMap;

use nix::unistd::{Group, User};
use usher_mac::Settings;
use usher_mac::bsdextended::{FileSystem, FileType, Ids, Mode, Object, Rule, Subject, Types};
use usher_mac::ifoff::SilenceSettings;
use usher_mac::portacl::{PortHolder, PortProtocol, PortRule, PortSettings};
use usher_mac::seeotheruids::VisibilitySettings;
use usher_mac::ubns::{DestinationRange, ServiceSettings};
use usher_policy::mac::bsdextended::{AccessRule, AccountRange, FileTypes, Membership, RuleObject};
use usher_policy::mac::ifoff::IfOff;
use usher_policy::mac::portacl::{PortAcl, PortPermit};
use usher_policy::mac::seeotheruids::SeeOtherUids;
use usher_policy::mac::{AccountId, MacBlock, ModuleSettings};
use usher_policy::{Policy, ServedBy};

use super::error::MacError;
use super::file_systems::{FileSystems, NOWHERE};
use super::typing;

/// This process's network namespace.
const NETWORK: &str = "/proc/self/ns/net";

/// Looks names up, each once.
pub(super) struct Resolver<'f> {
    file_systems: &'f FileSystems,
    /// The paths of `filesys` where nothing is mounted, whose rules wait.
    pub(super) unmounted: Vec<(String, MacError)>,
    pub(super) users: Accounts,
    pub(super) groups: Accounts,
}

/// The users or the groups of this host.
pub(super) struct Accounts {
    noun: &'static str,
    look_up: fn(&str) -> nix::Result<Option<u32>>,
    known: BTreeMap<String, u32>,
}

impl<'f> Resolver<'f> {
    pub(super) fn new(file_systems: &'f FileSystems) -> Self {
        Self {
            file_systems,
            unmounted: Vec::new(),
            users: Accounts::new("user", |name| {
                Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
            }),
            groups: Accounts::new("group", |name| {
                Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
            }),
        }
    }

    /// The settings of a block; none for a module that has none.
    ///
    /// # Errors
    /// The first name that this host does not know, with its rule.
    pub(super) fn settings(&mut self, block: &MacBlock) -> Result<Option<Settings>, MacError> {
        match &block.settings {
            ModuleSettings::Nothing
            | ModuleSettings::Framework(_)
            // By the declaration of its file.
            | ModuleSettings::Declared(_) => Ok(None),
            ModuleSettings::Bsdextended(rules) => {
                let rules: Result<_, MacError> = rules.iter().map(|rule| self.rule(rule)).collect();
                Ok(Some(Settings::Bsdextended(rules?)))
            }
            ModuleSettings::Portacl(ports) => Ok(Some(Settings::Portacl(self.ports(ports)?))),
            ModuleSettings::Seeotheruids(exempt) => {
                Ok(Some(Settings::Seeotheruids(self.exempt(exempt)?)))
            }
            ModuleSettings::Ifoff(silence) => Ok(Some(Settings::Ifoff(silenced(silence)?))),
            ModuleSettings::Te(types) => Ok(Some(Settings::Te(typing::settings(types)))),
        }
    }

    fn ports(&mut self, ports: &PortAcl) -> Result<PortSettings, MacError> {
        let permits = ports.permits.iter();
        let rules = permits.map(|(permit, origin)| self.permit(permit, &origin.place.to_string()));
        Ok(PortSettings {
            rules: rules.collect::<Result<_, _>>()?,
            port_high: ports.port_high,
            suser_exempt: ports.suser_exempt,
            autoport_exempt: ports.autoport_exempt,
        })
    }

    fn exempt(&mut self, exempt: &SeeOtherUids) -> Result<VisibilitySettings, MacError> {
        let group = exempt.specificgid.as_ref();
        let group = group.map(|(group, origin)| self.groups.one(group, &origin.place.to_string()));
        Ok(VisibilitySettings {
            specificgid: group.transpose()?,
            primarygroup: exempt.primarygroup,
            suser_privileged: exempt.suser_privileged,
        })
    }

    fn permit(&mut self, permit: &PortPermit, place: &str) -> Result<PortRule, MacError> {
        let account = &permit.account;
        Ok(PortRule {
            holder: match permit.is_group {
                true => PortHolder::Group(self.groups.one(account, place)?),
                false => PortHolder::User(self.users.one(account, place)?),
            },
            protocol: match permit.is_udp {
                true => PortProtocol::Udp,
                false => PortProtocol::Tcp,
            },
            port: permit.port,
        })
    }

    /// The services of a policy, for the module `ubns`.
    ///
    /// # Errors
    /// The first account that this host does not know, with its service.
    pub(super) fn services(&mut self, policy: &Policy) -> Result<Settings, MacError> {
        let services = policy.services.values().map(|service| {
            let account = match &service.served_by {
                ServedBy::Program(_) => None,
                ServedBy::Account(account) => {
                    let place = format!("service {}", service.name);
                    Some(self.users.named(account.as_ref(), &place)?)
                }
            };
            let connect = service.connect.as_ref().map(|connect| {
                let entries = connect.entries.iter().flat_map(|entry| {
                    let ports = entry
                        .ports
                        .map_or((0, u16::MAX), |ports| (ports.first, ports.last));
                    entry.addresses.iter().map(move |range| DestinationRange {
                        first: range.first(),
                        last: range.last(),
                        ports,
                    })
                });
                entries.collect()
            });
            Ok(ServiceSettings {
                name: service.name.to_string(),
                port: service.listen,
                account,
                connect,
            })
        });
        let services: Result<_, MacError> = services.collect();
        Ok(Settings::Ubns(services?))
    }

    fn rule(&mut self, rule: &AccessRule) -> Result<Rule, MacError> {
        let place = rule.origin.place.to_string();
        let subject = Subject {
            uids: self.users.members(rule.subject.users.as_ref(), &place)?,
            gids: self.groups.members(rule.subject.groups.as_ref(), &place)?,
        };
        let mode = rule.mode.letters().parse::<Mode>();
        let object = self.object(&rule.object, &place)?;
        Ok(Rule {
            subject,
            object,
            // The dialect has the same letters; none of them is the safe side.
            mode: mode.unwrap_or_default(),
        })
    }

    fn object(&mut self, object: &RuleObject, place: &str) -> Result<Object, MacError> {
        let file_system = object.file_system.as_ref().map(|(is, path)| {
            let (found, mounted) = file_system(self.file_systems, *is, path, place);
            if let Err(error) = mounted {
                self.unmounted.push((path.clone(), error));
            }
            found
        });
        Ok(Object {
            uids: self.users.members(object.users.as_ref(), place)?,
            gids: self.groups.members(object.groups.as_ref(), place)?,
            filesystem: file_system,
            suid: object.suid,
            sgid: object.sgid,
            uid_of_subject: object.uid_of_subject,
            gid_of_subject: object.gid_of_subject,
            types: object
                .types
                .as_ref()
                .map(|(is, types)| types_of(!is, types)),
        })
    }
}

/// The file system that is mounted at the path of a rule. Where none is, it is one that no file is on, and the reason
/// comes with it.
fn file_system(
    file_systems: &FileSystems,
    is: bool,
    path: &str,
    place: &str,
) -> (FileSystem, Result<(), MacError>) {
    let device = file_systems.device(path);
    let (major, minor) = *device.as_ref().unwrap_or(&NOWHERE);
    let mounted = device.map(drop).map_err(|error| MacError::NotMounted {
        place: place.to_owned(),
        statement: "filesys",
        path: path.to_owned(),
        error,
    });
    let not = !is;
    (FileSystem { not, major, minor }, mounted)
}

/// Has rules be about the file systems that are mounted at their paths now. Users and groups are not looked up again.
///
/// # Errors
/// The first path where nothing is mounted: its rules wait. Or the first one that gets no answer: its rules stay as
/// they are.
pub(super) fn follow_mounts(
    file_systems: &FileSystems,
    wanted: &[AccessRule],
    rules: &mut [Rule],
) -> Result<(), MacError> {
    let mut all = Ok(());
    for (wanted, rule) in wanted.iter().zip(rules) {
        if let Some((is, path)) = &wanted.object.file_system {
            let place = wanted.origin.place.to_string();
            let (found, mounted) = file_system(file_systems, *is, path, &place);
            match mounted {
                // A user could take the rule away otherwise, by a file system that does not answer.
                Err(error) if error.is_unanswered() => all = all.and(Err(error)),
                mounted => {
                    rule.object.filesystem = Some(found);
                    all = all.and(mounted.map_err(|error| MacError::Waits(Box::new(error))));
                }
            }
        }
    }
    all
}

/// Whether a rule of the policy names this file system.
pub(super) fn names_file_system(policy: Option<&Policy>, path: &str) -> bool {
    let blocks = policy.into_iter().flat_map(|policy| &policy.mac);
    let rules = blocks.flat_map(|block| match &block.settings {
        ModuleSettings::Bsdextended(rules) => rules.as_slice(),
        _ => &[],
    });
    let mut named = rules.filter_map(|rule| rule.object.file_system.as_ref());
    named.any(|(_, named)| named == path)
}

/// Interfaces are those of this process's network namespace.
fn silenced(silence: &IfOff) -> Result<SilenceSettings, MacError> {
    let network = rustix::fs::stat(NETWORK).map_err(|error| MacError::Network(error.into()))?;
    Ok(SilenceSettings {
        loopback: silence.loopback,
        others: silence.others,
        capture: silence.capture,
        interfaces: silence.interfaces.clone(),
        // The kernel numbers namespaces with 32 bits.
        network: network.st_ino as u32,
    })
}

fn types_of(not: bool, types: &FileTypes) -> Types {
    let known = FileType::ALL.into_iter();
    let meant = known.filter(|(_, letter)| types.letters().contains(*letter));
    Types {
        not,
        types: meant.map(|(kind, _)| kind).collect(),
    }
}

impl Accounts {
    fn new(noun: &'static str, look_up: fn(&str) -> nix::Result<Option<u32>>) -> Self {
        let known = BTreeMap::new();
        Self {
            noun,
            look_up,
            known,
        }
    }

    /// The number of a name, looked up once.
    fn named(&mut self, name: &str, place: &str) -> Result<u32, MacError> {
        if let Some(id) = self.known.get(name) {
            return Ok(*id);
        }
        let (place, noun, name) = (place.to_owned(), self.noun, name.to_owned());
        match (self.look_up)(&name) {
            Ok(Some(id)) => {
                self.known.insert(name, id);
                Ok(id)
            }
            Ok(None) => Err(MacError::Unknown { place, noun, name }),
            Err(error) => Err(MacError::LookUp {
                place,
                noun,
                name,
                error: error.into(),
            }),
        }
    }

    pub(super) fn one(&mut self, account: &AccountId, place: &str) -> Result<u32, MacError> {
        match account {
            AccountId::Number(number) => Ok(*number),
            AccountId::Name(name) => self.named(name, place),
        }
    }

    fn members(&mut self, of: Option<&Membership>, place: &str) -> Result<Option<Ids>, MacError> {
        let Some(Membership { not, accounts }) = of else {
            return Ok(None);
        };
        let ranges = accounts.iter().map(|account| match account {
            AccountRange::Numbers(first, last) => Ok((*first, *last)),
            AccountRange::Name(name) => self.named(name, place).map(|id| (id, id)),
        });
        let ranges: Result<_, MacError> = ranges.collect();
        Ok(Some(Ids {
            not: *not,
            ranges: ranges?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use usher_mac::Module;

    fn file_systems() -> FileSystems {
        FileSystems::new(File::open("/proc/self/mountinfo").unwrap())
    }

    fn resolved(rules: &str) -> Result<Option<Settings>, MacError> {
        settings_of(&format!("mac bsdextended {{\n{rules}\n}}"))
    }

    /// The settings of the only block.
    fn settings_of(block: &str) -> Result<Option<Settings>, MacError> {
        let source = usher_policy::Source {
            name: "a.policy".into(),
            text: block.into(),
        };
        let policy = usher_policy::parse(&[source]).unwrap();
        Resolver::new(&file_systems()).settings(&policy.mac[0])
    }

    #[test]
    fn names_become_numbers_and_letters_become_kinds() {
        let text = "rule subject uid root 5:9 not gid root object type rd not suid mode xr;";
        let Ok(Some(Settings::Bsdextended(rules))) = resolved(text) else {
            panic!("rules");
        };
        let ids = |not, ranges: &[(u32, u32)]| {
            let ranges = ranges.to_vec();
            Some(Ids { not, ranges })
        };
        assert_eq!(rules[0].subject.uids, ids(false, &[(0, 0), (5, 9)]));
        assert_eq!(rules[0].subject.gids, ids(true, &[(0, 0)]));
        assert_eq!(rules[0].object.suid, Some(false));
        let types = rules[0].object.types.as_ref().unwrap();
        assert_eq!(types.types, [FileType::Regular, FileType::Directory]);
        assert_eq!(rules[0].mode.to_string(), "rx");
    }

    #[test]
    fn unknown_names_are_refused_with_their_rule() {
        let refused = resolved("rule mode r;\nrule subject uid no-such-user mode r;").unwrap_err();
        let said =
            "a.policy:3:1: this host has no user no-such-user; create it, or correct the name";
        assert_eq!(refused.to_string(), said);
        let refused = resolved("rule object gid no-such-group mode r;").unwrap_err();
        assert!(
            refused.to_string().contains("no group no-such-group"),
            "{refused}"
        );
    }

    #[test]
    fn a_rule_waits_where_nothing_is_mounted_and_moves_when_something_is() {
        let text = "mac bsdextended {
            rule object not filesys \"/no/such/path\" mode r;
            rule object filesys \"/proc\" uid root mode r;
        }";
        let name = "a.policy".into();
        let text = text.into();
        let policy = usher_policy::parse(&[usher_policy::Source { name, text }]).unwrap();
        let file_systems = file_systems();
        let mut resolver = Resolver::new(&file_systems);
        let settings = resolver.settings(&policy.mac[0]).unwrap();
        let Some(Settings::Bsdextended(mut rules)) = settings else {
            panic!("rules");
        };
        let (path, reason) = &resolver.unmounted[0];
        let said = format!("a.policy:2:13: filesys {path}: ");
        assert!(reason.to_string().starts_with(&said), "{reason}");
        let is_at = |rule: &Rule| {
            let at = rule.object.filesystem.unwrap();
            (at.not, (at.major, at.minor))
        };
        let proc = file_systems.device("/proc").unwrap();
        assert_eq!(is_at(&rules[0]), (true, NOWHERE));
        assert_eq!(is_at(&rules[1]), (false, proc));
        assert_eq!(rules[1].object.uids.as_ref().unwrap().ranges, [(0, 0)]);

        // As the rules were before another file system got the number of the former one.
        let now = rules.clone();
        rules[0].object.filesystem.as_mut().unwrap().minor = proc.1;
        rules[1].object.filesystem.as_mut().unwrap().minor = proc.1 + 1;
        let ModuleSettings::Bsdextended(wanted) = &policy.mac[0].settings else {
            panic!("rules");
        };
        let waits = follow_mounts(&file_systems, wanted, &mut rules).unwrap_err();
        assert!(waits.to_string().contains("; the rule waits"), "{waits}");
        assert_eq!(rules, now);
        assert!(follow_mounts(&file_systems, &wanted[1..], &mut rules[1..]).is_ok());
        assert!(names_file_system(Some(&policy), "/proc"));
        assert!(!names_file_system(Some(&policy), "/pro") && !names_file_system(None, "/proc"));
    }

    // Threat model: M103
    #[test]
    fn a_rule_stays_where_its_path_gets_no_answer() {
        let text = "mac bsdextended { rule object filesys \"/proc\" mode r; }";
        let (name, text) = ("a.policy".into(), text.into());
        let policy = usher_policy::parse(&[usher_policy::Source { name, text }]).unwrap();
        let file_systems = file_systems();
        let settings = Resolver::new(&file_systems).settings(&policy.mac[0]);
        let (Ok(Some(Settings::Bsdextended(mut rules))), ModuleSettings::Bsdextended(wanted)) =
            (settings, &policy.mac[0].settings)
        else {
            panic!("rules");
        };
        let before = rules.clone();
        let hangs = file_systems.mounted("/proc", |_| {
            loop {
                std::thread::park();
            }
        });
        assert_eq!(hangs.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        let said = follow_mounts(&file_systems, wanted, &mut rules).unwrap_err();
        assert!(said.is_unanswered(), "{said}");
        assert_eq!(rules, before);
    }

    #[test]
    fn permits_of_ports_name_users_and_groups_of_this_host() {
        let text =
            "mac portacl { permit user daemon tcp 80; permit group 7 udp 53; port_high 99; }";
        let Ok(Some(Settings::Portacl(ports))) = settings_of(text) else {
            panic!("ports");
        };
        let rule = |holder, protocol, port| PortRule {
            holder,
            protocol,
            port,
        };
        let expected = [
            rule(PortHolder::Group(7), PortProtocol::Udp, 53),
            // An account of every host.
            rule(PortHolder::User(1), PortProtocol::Tcp, 80),
        ];
        assert_eq!(
            (ports.rules.as_slice(), ports.port_high),
            (&expected[..], 99)
        );
        let refused = settings_of("mac portacl {\n permit group no-such tcp 80; }").unwrap_err();
        let said = "a.policy:2:2: this host has no group no-such; create it, or correct the name";
        assert_eq!(refused.to_string(), said);
    }

    #[test]
    fn the_exempt_group_is_one_of_this_host() {
        let exempt =
            |statements: &str| settings_of(&format!("mac seeotheruids {{ {statements} }}"));
        let expected = VisibilitySettings {
            specificgid: Some(0),
            primarygroup: true,
            suser_privileged: true,
        };
        let found = exempt("specificgid root; primarygroup yes;").unwrap();
        assert_eq!(found, Some(Settings::Seeotheruids(expected)));
        let found = exempt("").unwrap();
        assert_eq!(
            found,
            Module::named("seeotheruids").and_then(|module| module.settings().cloned())
        );
        let refused = exempt("specificgid no-such;").unwrap_err().to_string();
        let said = "a.policy:1:20: this host has no group no-such; create it, or correct the name";
        assert_eq!(refused, said);
    }

    #[test]
    fn switches_are_about_interfaces_of_this_network_namespace() {
        let text = "mac ifoff { interface \"eth0\" on; interface \"eth1\" off; capture on; }";
        let Ok(Some(Settings::Ifoff(silence))) = settings_of(text) else {
            panic!("interfaces");
        };
        let own = std::fs::read_link(NETWORK).unwrap();
        assert_eq!(own.to_str(), Some(&*format!("net:[{}]", silence.network)));
        let named = [("eth0".to_owned(), true), ("eth1".to_owned(), false)];
        let expected = SilenceSettings {
            capture: true,
            interfaces: named.into(),
            network: silence.network,
            ..SilenceSettings::default()
        };
        assert_eq!(silence, expected);
    }

    #[test]
    fn services_keep_what_the_kernel_decides_by() {
        let policy = |account: &str| {
            let text = format!(
                "users mail {{ member alice; }}
                 service imap {{
                   program \"/bin/true\"; listen 143; users mail; hosts any; style user;
                   connect 192.0.2.0/24 port 25 - 26, 2001:db8::1;
                 }}
                 service notes {{
                   account {account}; listen 8080; users mail; hosts any; style user;
                 }}"
            );
            let name = "a.policy".into();
            usher_policy::parse(&[usher_policy::Source { name, text }]).unwrap()
        };
        let services = |account: &str| Resolver::new(&file_systems()).services(&policy(account));
        let to = |first: &str, last: &str, ports| DestinationRange {
            first: first.parse().unwrap(),
            last: last.parse().unwrap(),
            ports,
        };
        let expected = vec![
            ServiceSettings {
                name: "imap".into(),
                port: 143,
                account: None,
                connect: Some(vec![
                    to("192.0.2.0", "192.0.2.255", (25, 26)),
                    to("2001:db8::1", "2001:db8::1", (0, 65535)),
                ]),
            },
            ServiceSettings {
                name: "notes".into(),
                port: 8080,
                account: Some(1),
                connect: None,
            },
        ];
        // An account of every host.
        assert_eq!(services("daemon").unwrap(), Settings::Ubns(expected));
        let refused = services("no-such-user").unwrap_err().to_string();
        let said =
            "service notes: this host has no user no-such-user; create it, or correct the name";
        assert_eq!(refused, said);
    }
}
