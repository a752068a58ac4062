//! Classes of protection, and their numbers.

use usher_language::words;

words! {
    /// The protection of traffic by IPsec.
    pub enum Kind {
        /// No one else can read or change it: encryption includes authentication.
        Encryption = "encryption",
        /// No one else can change it.
        Authentication = "authentication",
    }

    /// The algorithms that protect it. The IKE side has the proposals of each.
    pub enum Profile {
        /// Encryption by AES-256-GCM or ChaCha20-Poly1305, authentication by AES-256-GMAC or by ESP NULL
        /// with HMAC-SHA-256, keys by X25519: what the two hosts both have.
        Standard = "standard",
        /// As `standard`, with a hybrid key exchange, which a quantum computer cannot break later. A host
        /// that has none is refused.
        Strong = "strong",
        /// Authentication by AH (RFC 4302) with HMAC-SHA-256, keys by X25519. It authenticates the addresses
        /// too, so it does not pass NAT. AH does not encrypt.
        Ah = "ah",
    }

    /// The rule for traffic in the clear.
    pub enum Level {
        /// Protected when both sides can.
        Optional = "optional",
        /// Never in the clear.
        Mandatory = "mandatory",
    }
}

impl Kind {
    /// Returns whether this kind includes the other one: encryption includes authentication.
    pub fn includes(self, other: Self) -> bool {
        self == other || self == Self::Encryption
    }
}

/// The value of the class mark that the first pair of class and level has: 0 is no mark, 1 bypass, 2
/// discard.
pub const LOWEST_CLASS_MARK: u8 = 3;

/// The treatment of traffic by an SA: all policies of a class share the SAs between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// The protection by IPsec.
    pub kind: Kind,
    /// Its algorithms.
    pub profile: Profile,
}

impl Class {
    /// All classes, by their number.
    pub const ALL: [Self; 5] = [
        Self::new(Kind::Encryption, Profile::Standard),
        Self::new(Kind::Authentication, Profile::Standard),
        Self::new(Kind::Encryption, Profile::Strong),
        Self::new(Kind::Authentication, Profile::Strong),
        Self::new(Kind::Authentication, Profile::Ah),
    ];

    /// The class of a kind and a profile. Encryption by AH, which the language refuses, is encryption.
    pub const fn new(kind: Kind, profile: Profile) -> Self {
        let profile = match (kind, profile) {
            (Kind::Encryption, Profile::Ah) => Profile::Standard,
            (_, profile) => profile,
        };
        Self { kind, profile }
    }

    /// The number of the class, from 0 on: its place in [`Class::ALL`]. The number belongs to the class, not
    /// to a policy, so that SAs outlive a change of the policy.
    pub const fn number(self) -> u8 {
        match (self.kind, self.profile) {
            (Kind::Encryption, Profile::Standard | Profile::Ah) => 0,
            (Kind::Authentication, Profile::Standard) => 1,
            (Kind::Encryption, Profile::Strong) => 2,
            (Kind::Authentication, Profile::Strong) => 3,
            (Kind::Authentication, Profile::Ah) => 4,
        }
    }

    /// The class mark of this class at a level, from [`LOWEST_CLASS_MARK`] on, at most 12: so it
    /// fits into the four bits that class marks have.
    ///
    /// Two hosts share SAs by class, whatever the level that each demands. So the inbound SAs of a
    /// class carry its mark of [`Level::Mandatory`], and an arriving packet is compared by class only
    /// ([`Class::of_mark`]).
    pub const fn mark(self, level: Level) -> u8 {
        let level = match level {
            Level::Mandatory => 0,
            Level::Optional => 1,
        };
        LOWEST_CLASS_MARK + 2 * self.number() + level
    }

    /// The class and the level of a class mark; none for the marks below [`LOWEST_CLASS_MARK`] and
    /// those that no class has.
    pub fn of_mark(mark: u8) -> Option<(Self, Level)> {
        let number = mark.checked_sub(LOWEST_CLASS_MARK)?;
        let class = *Self::ALL.get(usize::from(number / 2))?;
        let level = [Level::Mandatory, Level::Optional][usize::from(number % 2)];
        Some((class, level))
    }

    /// The name of the class, as IKE children and messages have it: `encryption`, `authentication-strong`,
    /// `authentication-ah`.
    pub fn name(self) -> &'static str {
        match (self.kind, self.profile) {
            (Kind::Encryption, Profile::Standard | Profile::Ah) => "encryption",
            (Kind::Authentication, Profile::Standard) => "authentication",
            (Kind::Encryption, Profile::Strong) => "encryption-strong",
            (Kind::Authentication, Profile::Strong) => "authentication-strong",
            (Kind::Authentication, Profile::Ah) => "authentication-ah",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_and_level_has_a_mark_of_its_own() {
        let mut next = LOWEST_CLASS_MARK;
        for (number, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(class.number()), number);
            for level in [Level::Mandatory, Level::Optional] {
                assert_eq!(class.mark(level), next);
                assert_eq!(Class::of_mark(next), Some((class, level)));
                next += 1;
            }
        }
        assert!(next <= 16, "four bits");
        for other in [0, 1, 2, next, u8::MAX] {
            assert_eq!(Class::of_mark(other), None);
        }
    }
}
