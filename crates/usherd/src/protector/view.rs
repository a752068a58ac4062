//! The protection in force, for an administrator: the answer to `usher protection show`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use usher_base::HostName;
use usher_daemon::clock::unix_time;
use usher_ipsec::{IpsecError, Unheld, UnheldReason};
use usher_local::requests::{ApplicationView, ProtectionView};
use usher_policy::Policy;
use usher_policy::protection::{Class, Report, Tables};

use super::force::Force;
use super::last_answers;
use super::negotiated::Negotiated;
use super::state::{State, optional};

impl Force {
    /// How far the negotiation with each peer is, and since when peers are held.
    pub(super) fn peers(&self) -> Report {
        let mut report = self.ike.report();
        let state = self.state.lock();
        let optional = optional(&state.tables);
        for peer in &mut report.peers {
            for class in &mut peer.classes {
                let is_optional = optional.iter().any(|own| own.name() == class.class);
                let since = state.negotiated.since(&peer.name, &class.class);
                class.held_since = since.filter(|_| is_optional);
            }
        }
        report
    }

    /// The protection in force, for an administrator.
    ///
    /// # Errors
    /// When the kernel's state cannot be read.
    pub(super) fn view(&self) -> Result<ProtectionView, IpsecError> {
        let mut state = self.state.lock();
        let mut view = ProtectionView::default();
        let State {
            configuration,
            tables,
            applied,
            ipsec,
            adopted,
            unlisted,
            not_held,
            answers,
            has_resolver,
            unrenewed,
            negotiated,
            contest,
            peers: hosts,
            ..
        } = &mut *state;
        let Some(configuration) = configuration else {
            return Ok(view);
        };
        view.generation = configuration.generation();
        let blocks = configuration.checked.policy.applications.iter();
        let applications = blocks.zip(&tables.applications).map(|(block, rules)| {
            let (missing, programs): (Vec<_>, Vec<_>) = rules
                .programs
                .iter()
                .partition(|program| applied.missing.contains(program));
            let names = |programs: Vec<_>| programs.iter().map(ToString::to_string).collect();
            ApplicationView {
                place: block.origin.place.to_string(),
                programs: names(programs),
                missing: names(missing),
                networks: rules.networks.len(),
            }
        });
        view.applications = applications.collect();
        view.marks = configuration.checked.policy.marks.bits();
        view.services = services(&configuration.checked.policy, tables);
        view.adopted_sockets = *adopted;
        view.troubles.extend(unlisted.as_ref().map(|error| {
            format!("sockets that are older than the policy may not be governed: {error}")
        }));
        let classes = tables.classes.iter();
        view.classes = classes
            .map(|(class, level)| format!("{} {level}", class.name()))
            .collect();
        view.unseen_scripts = match ipsec {
            Some(ipsec) => ipsec.monitor().unseen_scripts().map(str::to_owned),
            None => self.without_lsm().map(str::to_owned),
        };
        if let Some(ipsec) = ipsec {
            view.unseen_calls = ipsec.monitor().unseen_calls().map(str::to_owned);
            view.spd_entries = ipsec.spd_entries()?.len();
            let counters = usher_bpf::Counted::named(&ipsec.counters()?);
            let of_services = usher_bpf::Counted::named(&ipsec.service_counters()?);
            view.counters = counters
                .into_iter()
                .chain(of_services)
                .filter(|(_, number)| *number > 0)
                .collect();
            let wanted = ipsec.wanted().len();
            if view.spd_entries != wanted {
                let entries = view.spd_entries;
                view.troubles.push(format!(
                    "the SPD has {entries} of Usher's {wanted} entries: somebody changes it"
                ));
            }
            if usher_ipsec::asks_strangers(ipsec.wanted()) {
                view.troubles.push(
                    "the policy needs more entries of the SPD for single peers than the 131,072 that there \
                     is room for: programs that send to very many other addresses use up the kernel's \
                     memory, and may make datagrams to peers fail; name fewer peers, or fewer ports in \
                     blocks that protect wide networks"
                        .into(),
                );
            }
            view.troubles.extend(ipsec.unkept_services().map(|reason| {
                format!(
                    "while somebody removes Usher's entries of the SPD, connections with the services \
                     above leave in the clear: the kernel does not accept the programs that would drop \
                     them ({reason}); they need Linux 6.6 or later"
                )
            }));
            let seen = ipsec.monitor().unseen_calls().is_none();
            let unheld = ipsec.unheld().iter();
            view.troubles
                .extend(unheld.map(|unheld| of_unheld(unheld, seen)));
            view.troubles.extend(of_held(
                hosts,
                tables,
                negotiated,
                &ipsec.sas()?.receivers(),
            ));
            for sysctl in ipsec.changed_sysctls()? {
                view.troubles.push(format!(
                    "the sysctl {sysctl} was changed: answers may leave without protection, or be \
                     dropped; a restart of the protector sets it again"
                ));
            }
        }
        let refused = applied.refused.iter().map(ToString::to_string);
        view.troubles.extend(refused);
        let unread = applied.unread.iter().map(|path| {
            format!(
                "{}: the protector cannot read this file, so it cannot tell whether this is a script, \
                 which is not governed; install programs below /usr or /opt",
                path.display()
            )
        });
        view.troubles.extend(unread);
        for program in &applied.missing {
            view.troubles.push(format!(
                "{program}: there is no such file, or the protector cannot open it; its traffic is not \
                 governed"
            ));
        }
        if contest.is_on(Instant::now()) {
            view.troubles.push(
                "somebody keeps changing Usher's entries of the SPD: they are put back, at most every \
                 200 milliseconds, and what they would protect is dropped meanwhile; `ip xfrm monitor \
                 policy` shows the changes, and two programs that manage IPsec cannot share these \
                 entries"
                    .into(),
            );
        }
        if *not_held {
            let trouble = "the table of peers that are held to their protection was full: an optional \
                           peer that is not in it is served in the clear when its SAs are gone; write \
                           `mandatory` for peers that must be protected";
            view.troubles.push(trouble.into());
        }
        view.names = answers.view(unix_time());
        if !view.names.is_empty() && !*has_resolver {
            view.troubles.push(
                "the resolver does not run, so names are not followed: start usher-resolver.service"
                    .into(),
            );
        }
        view.troubles.extend(last_answers::troubles(&view.names));
        if let Some(reason) = unrenewed {
            view.troubles.push(format!(
                "the last answers for names are not in force: {reason}"
            ));
        }
        let asks_charon = !tables.classes.is_empty();
        let report = self.ike.report();
        let troubles = [report.trouble, report.lacks, report.unloaded];
        let troubles = troubles.into_iter().flatten();
        view.troubles.extend(troubles.filter(|_| asks_charon));
        let policy = &configuration.checked.policy;
        let own = policy.host_by_key(&self.settings.host_key);
        let unmatched = own.filter(|_| asks_charon);
        view.troubles.extend(
            unmatched
                .into_iter()
                .flat_map(|own| policy.unmatched_ike_keys(own)),
        );
        view.troubles
            .extend(negotiated.trouble().map(str::to_owned));
        Ok(view)
    }
}

/// Limit of hosts without SAs that are named.
const MOST_HELD: usize = 16;

/// The troubles with hosts that are held to an `optional` class, and have no SAs.
fn of_held(
    peers: &BTreeMap<HostName, BTreeSet<IpAddr>>,
    tables: &Tables,
    negotiated: &Negotiated,
    receivers: &BTreeSet<(Class, IpAddr)>,
) -> Vec<String> {
    let optional = optional(tables);
    let pairs = peers
        .iter()
        .flat_map(|host| optional.iter().map(move |class| (host, *class)));
    let without = pairs.filter(|((host, addresses), class)| {
        let is_held = negotiated.since(host, class.name()).is_some();
        is_held
            && !addresses
                .iter()
                .any(|address| receivers.contains(&(*class, *address)))
    });
    let without: Vec<_> = without.collect();
    let named = without.iter().take(MOST_HELD).map(|((host, _), class)| {
        format!(
            "{host} is held to {}, which it has had before, and has no SAs now: until it has, traffic with \
             it that the policy has as `optional` is refused in the clear, too; if it cannot negotiate, \
             let it go by `hold no;` in its `host` block",
            class.name()
        )
    });
    let mut troubles: Vec<String> = named.collect();
    if let Some(more) = without
        .len()
        .checked_sub(MOST_HELD)
        .filter(|more| *more > 0)
    {
        troubles.push(format!(
            "{more} more are held without SAs: see `usher protection peers`"
        ));
    }
    troubles
}

/// The trouble with sockets that are not treated as the policy says. `seen`: LSM programs see calls.
fn of_unheld(unheld: &Unheld, seen: bool) -> String {
    let (process, sockets) = (unheld.process, unheld.sockets);
    let program = match &unheld.program {
        Some(program) => program.to_string(),
        None => "a program whose file has been replaced".into(),
    };
    let why = match (unheld.reason, seen) {
        (UnheldReason::Kind, true) => {
            "which cannot be protected (MPTCP, SCTP, SMC, packet sockets and the like): its calls on them \
             fail (EPERM); restart it, so that it takes others"
        }
        (UnheldReason::Kind, false) => {
            "which cannot be protected (MPTCP, SCTP, SMC, packet sockets and the like): what they carry is \
             NOT treated as the policy says, because without LSM programs this kernel cannot refuse it; \
             restart the program if it has made them before the policy, or else run it without them"
        }
        (UnheldReason::Full, _) => {
            "for which the kernel has no room: what they carry is NOT treated as the policy says; raise \
             net.core.optmem_max, and restart it"
        }
        (UnheldReason::Mark, _) => {
            "of datagrams, that it has connected before this policy: once their traffic is protected each \
             send on them fails (EPERM) until they have the mark of their class: `usher policy apply` sets it, \
             also if nothing has changed; or restart the program"
        }
        (UnheldReason::Segments, _) => {
            "of datagrams, for which it has set UDP_SEGMENT: IPsec does not take it, so sends that are to \
             be protected fail (EIO); switch off segmentation (GSO) in its settings"
        }
    };
    format!("{program} (process {process}) holds {sockets} socket(s), {why}")
}

/// The connections that are protected whichever program has them, for an administrator.
fn services(policy: &Policy, tables: &Tables) -> Vec<String> {
    let offered = policy.services.values().filter_map(|service| {
        let kind = service.protection.as_ref()?.kind;
        Some(format!(
            "{} at port {} here: {kind}",
            service.name, service.listen
        ))
    });
    let reached = tables.destinations.iter().map(|destination| {
        let (peer, port) = (destination.peer, destination.port);
        format!("port {port} of {peer}: {}", destination.class.name())
    });
    offered.chain(reached).collect()
}
