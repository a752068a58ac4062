//! The reasons for which Usher refuses: one list for the wire, the log and the user.

use std::fmt;
use std::str::FromStr;
use usher_base::DecodeError;
use usher_base::codec::{Codec, Reader};
use usher_base::serde_text::serde_as_text;

/// Defines the enumeration. For each [`Fault`]: variants with wire code, stable name, text, and a
/// remedy where it is not evident.
macro_rules! refusals {
    ($(
        $(#[$fault_meta:meta])*
        $fault:ident {$(
            $variant:ident = $code:literal $name:literal: $text:literal $(, $remedy:literal)?;
        )*}
    )*) => {
        /// The side that can lift a refusal.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Fault {
            $($(#[$fault_meta])* $fault,)*
        }

        /// The reason of a refusal.
        ///
        /// The texts (`Display`) are written for the person who is refused or who reads the log.
        /// Codes and names never change their meaning and are never reused.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[must_use]
        #[repr(u16)]
        pub enum Refusal {
            $($(#[doc = $text] $variant = $code,)*)*
        }

        impl Refusal {
            /// All reasons, those of one [`Fault`] together.
            pub const ALL: &'static [Self] = &[$($(Self::$variant,)*)*];

            /// The reason with this wire code; none for a code that this version does not know.
            #[must_use]
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($($code => Some(Self::$variant),)*)*
                    _ => None,
                }
            }

            /// The stable name for logs, metrics and JSON, in snake_case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Self::$variant => $name,)*)*
                }
            }

            /// The side at fault.
            #[must_use]
            pub const fn fault(self) -> Fault {
                match self {
                    $($(Self::$variant)|* => Fault::$fault,)*
                }
            }
        }

        impl fmt::Display for Refusal {
            /// The text, and the remedy if there is one.
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(match self {
                    $($(Self::$variant => concat!($text $(, ": ", $remedy)?),)*)*
                })
            }
        }

        impl std::error::Error for Refusal {}
    };
}

refusals! {
    /// The other side sent something wrong, or at the wrong time.
    Peer {
        Truncated = 1 "truncated": "the message ends too early";
        Oversized = 2 "oversized": "the message or one of its fields is longer than its limit";
        UnknownVersion = 3 "unknown_version":
            "the message has a version this program does not understand";
        Malformed = 4 "malformed": "the message breaks the rules of its format";
        Replayed = 32 "replayed": "this authenticator was used before";
        Expired = 33 "expired": "the authenticator's session has already ended";
        Stale = 34 "stale": "the authenticator was signed too long ago to be accepted";
        FutureDated = 35 "future_dated":
            "the authenticator is dated in the future",
            "compare the clocks of both hosts";
        LifetimeTooLong = 36 "lifetime_too_long":
            "the authenticator asks for a longer session than this server grants";
        WrongServerHost = 37 "wrong_server_host": "the authenticator is meant for another server";
        WrongClientHost = 38 "wrong_client_host":
            "the authenticator was made for another client host than the one that sent it";
        WrongServerAddress = 39 "wrong_server_address":
            "the address and port are not where this server offers the service";
        BadSignature = 64 "bad_signature":
            "the signature of the authenticator, or of the certificate in it, is not valid";
        UnsupportedKey = 65 "unsupported_key":
            "keys of this kind are not supported",
            "use an Ed25519, ECDSA or RSA key, or an Ed25519 or ECDSA key on a security key";
        UnsuitableRsaKey = 86 "unsuitable_rsa_key":
            "the RSA key, or that of the certificate's authority, has fewer than 2048 or more than \
             4096 bits, or an exponent that is even, 1 or of more than 32 bits",
            "use another key (ssh-keygen -t ed25519, or -t rsa -b 3072)";
        Sha1Signature = 87 "sha1_signature":
            "the signature of the authenticator, or of the certificate in it, is made with SHA-1 \
             (ssh-rsa)",
            "sign by an ssh-agent that makes rsa-sha2-512 signatures, such as OpenSSH's; certify \
             with `ssh-keygen -t rsa-sha2-512 -s ...`";
        ExpiredCertificate = 78 "expired_certificate":
            "the certificate has expired",
            "get a new one from the authority, and register it with `usher user add NAME \
             --certificate FILE`";
        CertificateNotYetValid = 79 "certificate_not_yet_valid":
            "the certificate is not valid yet",
            "compare the clocks of both hosts, or wait";
        UserNotPresent = 80 "user_not_present":
            "the security key signed without being touched",
            "make a key without `-O no-touch-required`";
        CriticalOption = 82 "critical_option":
            "the certificate has a critical option (such as source-address or force-command), \
             and none is supported",
            "get a certificate without it";
        NotAUserCertificate = 83 "not_a_user_certificate":
            "the certificate is for hosts",
            "get one for users (ssh-keygen -s without -h)";
        UnknownSession = 96 "unknown_session": "the server does not know the session";
        SessionEnded = 97 "session_ended": "the session has ended";
        ChainMismatch = 98 "chain_mismatch": "the chain element does not belong to the session";
        ChainReplayed = 99 "chain_replayed": "the chain element was used before";
        ChainExhausted = 100 "chain_exhausted": "the session's hash chain is used up";
        ChainGap = 101 "chain_gap": "the chain element is too far ahead of the last one accepted";
        ForeignAddress = 102 "foreign_address":
            "the announced client address does not belong to the announcing host",
            "compare it with the client's `host` block on the server; a plain connection may come \
             from a temporary IPv6 address (sysctl net.ipv6.conf.*.use_tempaddr=1 on the client)";
        AlreadyAnnounced = 103 "already_announced": "this connection is already announced";
        NotAuthenticatedAgain = 104 "not_authenticated_again":
            "the user was not authenticated again in the time that the service's policy gives";
        ReservationLapsed = 194 "reservation_lapsed":
            "no user is reserved for this process, or no longer";
        ProcessShared = 195 "process_shared":
            "the process has other threads or shares its memory with another process";
        AlreadySettled = 196 "already_settled": "the process has become a user already";
        TooManyGroups = 197 "too_many_groups": "the user is in more than 128 supplementary groups";
        NoConnection = 198 "no_connection": "Usher did not admit this connection, or it has ended";
        ForeignConnection = 199 "foreign_connection": "the connection is another user's";
        LacksCapabilities = 200 "lacks_capabilities":
            "the process lacks CAP_SETUID or CAP_SETGID",
            "add AmbientCapabilities=CAP_SETUID CAP_SETGID to its unit";
    }
    /// The policy, the keys or the accounts of the refusing host do not permit the request.
    Policy {
        UnknownService = 40 "unknown_service": "this server has no such service";
        UnknownKey = 66 "unknown_key": "the signing key is not one of the user's authorized keys";
        UnknownUser = 67 "unknown_user": "this server has no key of the user";
        DisabledUser = 68 "disabled_user": "the user is disabled on this server";
        UserNotPermitted = 69 "user_not_permitted":
            "the server's policy does not permit the service to this user";
        HostNotPermitted = 70 "host_not_permitted":
            "the server's policy does not permit the service from this host";
        NoLocalAccount = 71 "no_local_account": "the user has no account on this server";
        PrivilegedAccount = 72 "privileged_account":
            "the user's account on the server is privileged",
            "no worker runs as it";
        NotAuthenticated = 73 "not_authenticated":
            "the server did not accept the user, the key or the signature",
            "its log says which";
        RevokedKey = 74 "revoked_key": "the signing key is revoked on this server";
        ExpiredKey = 75 "expired_key":
            "the signing key has expired";
        UnknownAuthority = 76 "unknown_authority":
            "this server does not trust the certificate's authority for the user and the service";
        WrongPrincipal = 77 "wrong_principal":
            "no principal of the certificate may go by the user's name";
        RevokedCertificate = 81 "revoked_certificate":
            "the certificate, or the authority that signed it, is revoked on this server";
        GuestOver = 84 "guest_over":
            "the user's time as a guest of this server is over";
        AccountClosed = 85 "account_closed":
            "the user's account on this server is closed: expired, locked, without a login \
             shell, or no logins are permitted now; the server's log says which";
        UnknownHost = 162 "unknown_host": "local policy knows no host of this name";
        NoPrivateKey = 163 "no_private_key":
            "the signer knows no key for the user to sign with",
            "an administrator adds one";
        ClientPolicy = 164 "client_policy":
            "this machine's policy does not let the user connect to the service",
            "an administrator permits it in a `client` block";
        ProgramNotPermitted = 167 "program_not_permitted":
            "this machine's policy lets only some programs authenticate to the service, and \
             this one is not listed",
            "an administrator adds it to `programs` of the `client` block";
        ServiceMoved = 169 "service_moved":
            "this machine's policy has given the service's host another address, port or key \
             meanwhile",
            "try again";
        ServiceChanged = 105 "service_changed":
            "the server's policy has other processes serve the users of the service now",
            "connect again";
        NotThisAccount = 192 "not_this_account":
            "the policy has no service at this port whose `account` is the one this process \
             runs as";
    }
    /// A table or a quota of the host that refuses is full.
    Capacity {
        SessionTableFull = 128 "session_table_full": "the server's table of sessions is full";
        AdmissionTableFull = 129 "admission_table_full":
            "the server's table of announced connections is full";
        ListenerTableFull = 130 "listener_table_full": "the server's table of listeners is full";
        Overloaded = 133 "overloaded": "too many requests at once", "try again later";
        TokenTableFull = 135 "token_table_full":
            "the server takes no tokens of this session, because its table is full or its kernel \
             cannot read tokens under IPsec: connections are announced one by one";
    }
    /// A program or the kernel of the refusing host cannot serve the request now.
    Host {
        ListenerFailed = 131 "listener_failed":
            "the server could not make a listener for the user",
            "its log says why";
        KeeperUnavailable = 132 "keeper_unavailable": "the server's keeper does not answer";
        RecorderUnavailable = 134 "recorder_unavailable":
            "the server cannot keep a record of the authentication",
            "its log says why";
        NoFileConfinement = 136 "no_file_confinement":
            "the service's policy has `files`, and Landlock is not in force on the server",
            "`usher doctor` there says more";
        NoConnectConfinement = 137 "no_connect_confinement":
            "the service's policy has `connect`, and the server's kernel does not accept the \
             programs for it",
            "`usher doctor` there says more";
        LoginLabelUnknown = 138 "login_label_unknown":
            "the server does not know which label the user's processes get",
            "its log says why, and `usher mac login` there checks the file";
        AccountUnknown = 139 "account_unknown":
            "the server could not find out in time whether the user's account may be used now",
            "its PAM modules or what they ask are slow or fail; its log says which; try again later";
        VerifierUnavailable = 160 "verifier_unavailable": "the server's verifier cannot be reached";
        SignerUnavailable = 161 "signer_unavailable": "the local signer does not answer";
        AgentUnavailable = 165 "agent_unavailable":
            "the user signs by an ssh-agent, and none is lent to the signer",
            "run `usher agent` in the session that has the agent, or enable its unit \
             (systemctl --user enable --now usher-agent)";
        AgentRefused = 166 "agent_refused":
            "the user's ssh-agent did not sign",
            "`ssh-add -l` has to list the registered key, without destination constraints \
             (`ssh-add -h`), and a security key has to be touched within 25 seconds; \
             `usher agent` says which";
        CourierUnavailable = 168 "courier_unavailable":
            "this machine's courier, which connects to other hosts, does not answer",
            "start usher-courier.service";
        NoFence = 193 "no_fence":
            "the LSM programs that let processes become users are not in force on this host",
            "give the service a `program` instead of an `account`; `usher doctor` says more";
    }
}

const UNKNOWN: DecodeError = DecodeError::Malformed { field: "refusal" };

impl Refusal {
    /// The code on the wire; never 0.
    #[must_use]
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Whether the session is useless from now on: it has ended, or this side's chain differs from
    /// the server's. Another session may be opened.
    #[must_use]
    pub const fn ends_session(self) -> bool {
        matches!(
            self,
            Self::UnknownSession
                | Self::SessionEnded
                | Self::Expired
                | Self::ChainExhausted
                | Self::ChainMismatch
                | Self::ChainReplayed
                | Self::ChainGap
        )
    }

    /// Whether a daemon on the way did not answer. It may be back soon.
    #[must_use]
    pub const fn is_unanswered(self) -> bool {
        matches!(
            self,
            Self::VerifierUnavailable | Self::CourierUnavailable | Self::KeeperUnavailable
        )
    }

    /// The reason that a remote host gets. [`Refusal::NotAuthenticated`] replaces reasons that would
    /// reveal which users exist and which keys they have. The local log keeps the true reason.
    pub const fn disclosed(self) -> Self {
        match self {
            Self::UnknownUser
            | Self::UnknownKey
            | Self::RevokedKey
            | Self::ExpiredKey
            | Self::UnknownAuthority
            | Self::WrongPrincipal
            | Self::BadSignature
            | Self::NoLocalAccount => Self::NotAuthenticated,
            other => other,
        }
    }
}

impl fmt::Debug for Refusal {
    /// The stable name.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Refusal {
    type Err = DecodeError;

    /// Reads the stable name.
    fn from_str(name: &str) -> Result<Self, DecodeError> {
        let named = Self::ALL.iter().find(|refusal| refusal.name() == name);
        named.copied().ok_or(UNKNOWN)
    }
}

impl From<DecodeError> for Refusal {
    /// Lengths and versions keep their own reason; all else is [`Refusal::Malformed`].
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Truncated => Self::Truncated,
            DecodeError::Oversized => Self::Oversized,
            DecodeError::UnknownVersion => Self::UnknownVersion,
            DecodeError::UnknownType
            | DecodeError::Malformed { .. }
            | DecodeError::TrailingBytes => Self::Malformed,
        }
    }
}

impl Codec for Refusal {
    fn put(value: &Self, out: &mut Vec<u8>) {
        u16::put(&value.code(), out);
    }

    fn read(reader: &mut Reader<'_>, _: &'static str) -> Result<Self, DecodeError> {
        Self::from_code(reader.u16()?).ok_or(UNKNOWN)
    }
}

/// Two bytes of verdict: 0 means granted, any other number is the code of a refusal.
pub(crate) struct Granted;

impl Codec<Result<(), Refusal>> for Granted {
    fn put(value: &Result<(), Refusal>, out: &mut Vec<u8>) {
        u16::put(&value.err().map_or(0, Refusal::code), out);
    }

    fn read(reader: &mut Reader<'_>, _: &'static str) -> Result<Result<(), Refusal>, DecodeError> {
        match reader.u16()? {
            0 => Ok(Ok(())),
            code => Refusal::from_code(code).map(Err).ok_or(UNKNOWN),
        }
    }
}

serde_as_text!(Refusal, |refusal: &Refusal| refusal.name());

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_and_names_are_unique_and_go_there_and_back() {
        let mut codes = BTreeSet::new();
        let mut names = BTreeSet::new();
        let mut faults = Vec::new();
        for &refusal in Refusal::ALL {
            assert!(codes.insert(refusal.code()), "{refusal:?}");
            assert!(names.insert(refusal.name()), "{refusal:?}");
            assert_eq!(Refusal::from_code(refusal.code()), Some(refusal));
            assert_eq!(refusal.name().parse(), Ok(refusal));
            assert!(!refusal.to_string().is_empty());
            // `ALL` keeps the reasons of a fault together.
            if faults.last() != Some(&refusal.fault()) {
                assert!(!faults.contains(&refusal.fault()), "{refusal:?}");
                faults.push(refusal.fault());
            }
        }
        assert_eq!(codes.len(), 78);
    }

    #[test]
    fn a_refusal_says_whose_fault_it_is_and_what_helps() {
        for (refusal, fault) in [
            (Refusal::FutureDated, Fault::Peer),
            (Refusal::DisabledUser, Fault::Policy),
            (Refusal::Overloaded, Fault::Capacity),
            (Refusal::KeeperUnavailable, Fault::Host),
        ] {
            assert_eq!(refusal.fault(), fault);
        }
        assert_eq!(
            Refusal::FutureDated.to_string(),
            "the authenticator is dated in the future: compare the clocks of both hosts"
        );
    }

    #[test]
    fn codes_that_are_not_given_out_mean_nothing() {
        for code in (0..=u16::MAX).filter(|code| !Refusal::ALL.iter().any(|r| r.code() == *code)) {
            assert_eq!(Refusal::from_code(code), None);
        }
    }

    #[test]
    fn lengths_and_versions_keep_their_own_reason() {
        assert_eq!(Refusal::from(DecodeError::Truncated), Refusal::Truncated);
        assert_eq!(Refusal::from(DecodeError::Oversized), Refusal::Oversized);
        assert_eq!(
            Refusal::from(DecodeError::UnknownVersion),
            Refusal::UnknownVersion
        );
    }

    #[test]
    fn everything_else_is_malformed() {
        for error in [
            DecodeError::UnknownType,
            DecodeError::Malformed { field: "user" },
            DecodeError::TrailingBytes,
        ] {
            assert_eq!(Refusal::from(error), Refusal::Malformed);
        }
    }

    // Threat model: A6
    #[test]
    fn a_stranger_cannot_tell_users_and_keys_apart() {
        for refusal in [
            Refusal::UnknownUser,
            Refusal::UnknownKey,
            Refusal::RevokedKey,
            Refusal::ExpiredKey,
            Refusal::UnknownAuthority,
            Refusal::WrongPrincipal,
            Refusal::BadSignature,
            Refusal::NoLocalAccount,
        ] {
            assert_eq!(refusal.disclosed(), Refusal::NotAuthenticated);
        }
        assert_eq!(Refusal::DisabledUser.disclosed(), Refusal::DisabledUser);
        assert!(
            Refusal::ALL
                .iter()
                .all(|r| r.disclosed().disclosed() == r.disclosed())
        );
    }

    #[test]
    fn json_carries_the_name() {
        assert_eq!(
            serde_json::to_string(&Refusal::ChainGap).unwrap(),
            "\"chain_gap\""
        );
        assert_eq!(
            serde_json::from_str::<Refusal>("\"chain_gap\"").unwrap(),
            Refusal::ChainGap
        );
        serde_json::from_str::<Refusal>("\"chain_gaps\"").unwrap_err();
    }
}
