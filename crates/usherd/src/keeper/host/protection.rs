//! Keeps unprotected packets from the ports of services that demand IPsec, if the kernel accepts the program.
//! If it does not, users of such services are refused. The protector sees to the SAs.

use std::collections::BTreeMap;
use std::path::Path;

use usher_bpf::{Counted, or_zeros};
use usher_daemon::events;
use usher_kernel::KernelError;
use usher_kernel::protected::{Demand, Protected};
use usher_local::paths;
use usher_policy::protection::{Class, Level, MarkMask};
use usher_policy::{Policy, Service};
use usher_proto::refusal::Refusal;

/// The program that compares packets after IPsec, or the reason that the kernel does not accept it.
pub struct ProtectedPorts(Result<Protected, KernelError>);

impl ProtectedPorts {
    /// Takes up the demands of an earlier keeper.
    pub fn open() -> Self {
        let program = Protected::open(Path::new(paths::PROTECTED_PIN_DIRECTORY));
        if let Err(error) = &program {
            tracing::warn!(%error, "cannot demand protection of services: services with \
                `protection` are refused");
        }
        Self(program)
    }

    /// Checks whether a service's connections can be held to its `protection`.
    ///
    /// # Errors
    /// [`Refusal::ListenerFailed`]; [`ProtectedPorts::trouble`] has the reason.
    pub fn serves(&self, service: &Service) -> Result<(), Refusal> {
        match (&service.protection, &self.0) {
            (Some(_), Err(_)) => Err(Refusal::ListenerFailed),
            _ => Ok(()),
        }
    }

    /// The reason that sessions with a service are refused.
    pub fn trouble(&self, service: &Service) -> Option<String> {
        let error = self.0.as_ref().err()?;
        service.protection.as_ref()?;
        Some(format!(
            "its policy has `protection`, and the kernel does not accept the program for it ({error}): it \
             needs 6.6 or later"
        ))
    }

    /// Demands protection at the ports of a policy's services as well. Other ports keep their demands
    /// until [`ProtectedPorts::retain`]. Returns whether there are new links, for the guard.
    ///
    /// # Errors
    /// The kernel's error; no demand has been lifted or weakened.
    pub fn demand(&self, policy: &Policy) -> Result<bool, KernelError> {
        let Ok(program) = &self.0 else {
            return Ok(false);
        };
        program.add(&demands(policy))
    }

    /// Lifts all demands that a policy does not have. Call it when the policy is in force and everything that
    /// it no longer permits has ended, or when a policy whose demands were made is not put in force.
    ///
    /// # Errors
    /// The kernel's error; no demand of the policy is lifted.
    pub fn retain(&self, policy: &Policy) -> Result<(), KernelError> {
        let Ok(program) = &self.0 else {
            return Ok(());
        };
        program.apply(&demands(policy))
    }

    /// Attaches the program again if somebody has detached it. Returns whether there are new links, for
    /// the guard.
    pub fn mend(&self) -> bool {
        let Ok(program) = &self.0 else { return false };
        match program.mend() {
            Ok(false) => false,
            Ok(true) => {
                tracing::warn!(
                    name: events::TAMPERED,
                    "somebody has detached the program that keeps plaintext from services with \
                     `protection`; it is put back"
                );
                true
            }
            Err(error) => {
                tracing::error!(%error, "cannot put the program back that keeps plaintext from \
                    services with `protection`: plaintext may reach them");
                false
            }
        }
    }

    /// The program's id, for the guard; none if the program is not loaded.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn programs(&self) -> Result<Vec<u32>, KernelError> {
        let program = self.0.as_ref().ok();
        let id = program.map(Protected::program).transpose()?;
        Ok(id.into_iter().collect())
    }

    /// The program's counters.
    pub fn numbers(&self) -> Vec<(String, u64)> {
        let counters = self.0.as_ref().ok().map(Protected::counters);
        let named = or_zeros(counters).named().into_iter();
        named
            .map(|(name, number)| (format!("packets_{name}"), number))
            .collect()
    }
}

/// The demands of a policy's services, by port.
fn demands(policy: &Policy) -> BTreeMap<u16, Demand> {
    let services = policy.protected_services().into_iter();
    services
        .map(|service| (service.port, demand(service.classes, policy.marks)))
        .collect()
}

/// The marks that the inbound SAs of these classes set.
fn demand(classes: impl IntoIterator<Item = Class>, marks: MarkMask) -> Demand {
    let marked = |bits, class: Class| bits | 1 << class.mark(Level::Mandatory);
    Demand {
        shift: marks.shift(),
        classes: classes.into_iter().fold(0, marked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_policy::protection::{Class, Kind, Profile};

    fn service(protection: &str) -> Service {
        let text = format!(
            "users mail {{ member alice; }}\nservice imap {{ program \"/x\"; listen 143; users mail; \
             hosts any; style user; {protection} }}"
        );
        let name = "services.policy".to_owned();
        let policy = usher_policy::parse_policy(&[usher_policy::Source { name, text }]).unwrap();
        policy.services.into_values().next().unwrap()
    }

    #[test]
    fn encryption_meets_both_demands_and_authentication_its_own() {
        for (kind, met) in [
            ("encryption", [true, false]),
            ("authentication", [true, true]),
        ] {
            let service = service(&format!("protection {kind};"));
            let required = service.protection.unwrap();
            let demand = super::demand(required.classes(), MarkMask::default());
            for (kind, met) in [Kind::Encryption, Kind::Authentication]
                .into_iter()
                .zip(met)
            {
                for profile in [Profile::Standard, Profile::Strong] {
                    let mark = Class::new(kind, profile).mark(Level::Mandatory);
                    assert_eq!(demand.classes >> mark & 1 == 1, met, "{kind} {profile}");
                }
            }
            let other = MarkMask::new(0x000f_f000).unwrap();
            let other = super::demand(required.classes(), other);
            assert_eq!((demand.shift, other.shift), (20, 12));
            // Neither plaintext nor packets that `application` blocks let pass meet the demand.
            assert_eq!(demand.classes & 7, 0);
        }
    }

    #[test]
    fn without_the_program_only_protected_services_are_refused() {
        let ports = ProtectedPorts(Err(KernelError::MissingPart("require")));
        assert_eq!(ports.serves(&service("")), Ok(()));
        assert_eq!(ports.trouble(&service("")), None);
        let demanding = service("protection encryption;");
        assert_eq!(ports.serves(&demanding), Err(Refusal::ListenerFailed));
        assert!(ports.trouble(&demanding).unwrap().contains("6.6"));
    }
}
