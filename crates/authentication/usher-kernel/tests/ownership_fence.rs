//! The setuid fence: a service's process becomes only the user it was granted, and only once.

#[macro_use]
mod ownership;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use ownership::ring::{NOP, Ring, SETUP_SQPOLL};
use ownership::*;
use usher_kernel::ownership::{Identity, OwnershipError, ProcessState, Reason};

fn ids() -> [u32; 3] {
    let mut ids = [0; 3];
    let [real, effective, saved] = &mut ids;
    let addresses = [
        std::ptr::from_mut(real) as i64,
        std::ptr::from_mut(effective) as i64,
        std::ptr::from_mut(saved) as i64,
    ];
    call(libc::SYS_getresuid, &addresses).unwrap();
    ids
}

fn fsuid() -> u32 {
    // Sets nothing and returns the former id.
    call(libc::SYS_setfsuid, &[u32::MAX.into()]).unwrap() as u32
}

/// Sends a message that claims to be of `uid`.
fn claim(uid: u32) -> io::Result<i64> {
    let mut pair = [0_i32; 2];
    let kind = libc::SOCK_DGRAM.into();
    call(
        libc::SYS_socketpair,
        &[libc::AF_UNIX.into(), kind, 0, pair.as_mut_ptr() as i64],
    )?;
    #[repr(C, align(8))]
    struct Control {
        header: libc::cmsghdr,
        credentials: libc::ucred,
    }
    let mut control = Control {
        header: libc::cmsghdr {
            cmsg_len: size_of::<libc::cmsghdr>() + size_of::<libc::ucred>(),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_CREDENTIALS,
        },
        credentials: libc::ucred {
            pid: std::process::id() as i32,
            uid,
            gid: call(libc::SYS_getgid, &[])? as u32,
        },
    };
    let mut byte = *b".";
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: every field may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = std::ptr::from_mut(&mut control).cast();
    message.msg_controllen = size_of::<Control>();
    call(
        libc::SYS_sendmsg,
        &[pair[0].into(), std::ptr::from_ref(&message) as i64, 0],
    )
}

fn own_namespace() -> io::Result<i64> {
    call(libc::SYS_unshare, &[libc::CLONE_NEWUSER.into()])
}

/// A copy of `true` with this mode.
fn program(name: &str, mode: u32) -> String {
    let path = format!("/run/{name}");
    std::fs::copy("/usr/bin/true", &path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// Changes to bob after an exec.
fn change_after_exec() -> bool {
    Command::new("setpriv")
        .args([format!("--reuid={BOB}").as_str(), "true"])
        .status()
        .unwrap()
        .success()
}

fn exec_by_a_thread(script: &str) {
    let script = script.to_owned();
    in_thread(move || {
        let failed = Command::new("sh").args(["-c", &script]).exec();
        panic!("{failed}");
    });
    panic!("the thread came back");
}

ownership_tests! {
    // Threat model: A97
    fn a_service_becomes_the_granted_user_once(world) {
        let before_capability = world.count(Reason::Capability);
        let mut service = process(|line| {
            become_service(SERVICE);
            say(line);
            hear(line);
            become_alice().unwrap();
            assert_eq!((ids(), fsuid()), ([ALICE; 3], ALICE));
            say(line);
            hear(line);
            for uid in [BOB, SERVICE, 0] {
                expect_refused(setuid(uid));
                expect_refused(setresuid(u32::MAX, uid, u32::MAX));
                expect_refused(setgid(uid));
            }
            expect_refused(setgroups(&MORE_GROUPS));
            setuid(ALICE).unwrap();
            setgid(ALICE).unwrap();
            assert_eq!((ids(), fsuid()), ([ALICE; 3], ALICE));
            expect_refused(claim(BOB));
            claim(ALICE).unwrap();
            expect_refused(own_namespace());
        });
        let state = || world.ownership.state(service.fd()).unwrap();
        let mut line = service.line.try_clone().unwrap();
        hear(&mut line);
        assert_eq!(state(), ProcessState::None);
        world.ownership.grant(service.fd(), &alice()).unwrap();
        assert_eq!(state(), ProcessState::Granted(ALICE));
        say(&mut line);
        hear(&mut line);
        assert_eq!(state(), ProcessState::Settled(ALICE));
        let bob = Identity { uid: BOB, ..alice() };
        assert!(matches!(
            world.ownership.grant(service.fd(), &bob),
            Err(OwnershipError::AlreadySettled(ALICE))
        ));
        world.ownership.withdraw(service.fd()).unwrap();
        assert_eq!(state(), ProcessState::Settled(ALICE));
        say(&mut service.line);
        service.done();
        assert!(world.count(Reason::Capability) > before_capability);
    }

    // Threat model: A97
    fn without_a_grant_a_service_changes_nothing(world) {
        let before_capability = world.count(Reason::Capability);
        in_child(|| {
            become_service(SERVICE);
            expect_refused(setgroups(&MORE_GROUPS));
            expect_refused(setgid(ALICE));
            expect_refused(setuid(ALICE));
            expect_refused(setuid(0));
            setuid(SERVICE).unwrap();
            setgid(SERVICE).unwrap();
        });
        assert!(world.count(Reason::Capability) > before_capability);
        in_child(|| {
            become_service(FREE);
            become_alice().unwrap();
        });
    }

    // Threat model: A97
    fn a_grant_taken_back_is_none(world) {
        let mut service = process(|line| {
            become_service(SERVICE);
            say(line);
            hear(line);
            expect_refused(become_alice());
        });
        hear(&mut service.line);
        world.ownership.grant(service.fd(), &alice()).unwrap();
        world.ownership.withdraw(service.fd()).unwrap();
        assert_eq!(world.ownership.state(service.fd()).unwrap(), ProcessState::None);
        say(&mut service.line);
        service.done();
    }

    // Threat model: A97
    fn what_was_not_granted_is_refused_and_uses_nothing_up(world) {
        let before_other_groups = world.count(Reason::IdentityOtherGroups);
        let before_other_group = world.count(Reason::IdentityOtherGroup);
        let before_other_user = world.count(Reason::IdentityOtherUser);
        with_a_grant(world, || {
            for groups in [&[][..], &[BOB], &MORE_GROUPS[..1], &[61_010, 61_020, 61_030]] {
                expect_refused(setgroups(groups));
            }
            expect_refused(setgid(BOB));
            expect_refused(call(libc::SYS_setresgid, &[-1, ALICE.into(), -1]));
            setgroups(&[MORE_GROUPS[1], MORE_GROUPS[0]]).unwrap();
            setgid(ALICE).unwrap();
            expect_refused(setuid(BOB));
            expect_refused(setuid(0));
            expect_refused(setresuid(u32::MAX, ALICE, u32::MAX));
            expect_refused(setresuid(ALICE, ALICE, SERVICE));
            setresuid(ALICE, ALICE, ALICE).unwrap();
        });
        assert_eq!(world.count(Reason::IdentityOtherGroups) - before_other_groups, 4);
        assert_eq!(world.count(Reason::IdentityOtherGroup) - before_other_group, 2);
        assert_eq!(world.count(Reason::IdentityOtherUser) - before_other_user, 4);
    }

    // Threat model: A97
    fn groups_come_before_the_user(world) {
        let before_order = world.count(Reason::IdentityOrder);
        with_a_grant(world, || {
            expect_refused(setuid(ALICE));
            setgid(ALICE).unwrap();
            expect_refused(setuid(ALICE));
            setgroups(&MORE_GROUPS).unwrap();
            setuid(ALICE).unwrap();
        });
        assert_eq!(world.count(Reason::IdentityOrder) - before_order, 2);
    }

    // Threat model: A97
    fn all_128_groups_are_compared(world) {
        let groups: Vec<u32> = (70_000..70_128).collect();
        let identity = Identity { groups: groups.clone(), ..alice() };
        let mut service = process(|line| {
            become_service(SERVICE);
            say(line);
            hear(line);
            let mut other = groups.clone();
            other[127] += 1;
            expect_refused(setgroups(&other));
            setgroups(&groups).unwrap();
            setgid(ALICE).unwrap();
            setuid(ALICE).unwrap();
        });
        hear(&mut service.line);
        world.ownership.grant(service.fd(), &identity).unwrap();
        say(&mut service.line);
        service.done();
    }

    // Threat model: A97
    fn the_file_system_id_alone_does_not_change(world) {
        let before_other_user = world.count(Reason::IdentityOtherUser);
        with_a_grant(world, || {
            call(libc::SYS_setfsuid, &[ALICE.into()]).unwrap();
            assert_eq!(fsuid(), SERVICE);
            become_alice().unwrap();
        });
        assert!(world.count(Reason::IdentityOtherUser) > before_other_user);
        in_child(|| {
            become_service(FREE);
            call(libc::SYS_setfsuid, &[ALICE.into()]).unwrap();
            assert_eq!(fsuid(), ALICE);
        });
    }

    fn root_takes_an_accounts_id_for_a_while_and_comes_back(world) {
        let _ = world;
        in_child(|| {
            for account in [SERVICE, FREE] {
                call(libc::SYS_setresuid, &[-1, account.into(), -1]).unwrap();
                call(libc::SYS_setresuid, &[-1, 0, -1]).unwrap();
                call(libc::SYS_setfsuid, &[account.into()]).unwrap();
                assert_eq!(fsuid(), account);
                call(libc::SYS_setfsuid, &[ALICE.into()]).unwrap();
                assert_eq!(fsuid(), ALICE);
                call(libc::SYS_setfsuid, &[0]).unwrap();
            }
            // The process is settled for good.
            become_service(SERVICE);
            expect_refused(setuid(0));
        });
    }

    // Threat model: A101
    fn a_grant_is_not_inherited_and_settling_is(world) {
        with_a_grant(world, || {
            in_child(|| expect_refused(become_alice()));
            become_alice().unwrap();
            in_child(|| {
                expect_refused(setuid(SERVICE));
                expect_refused(own_namespace());
                in_child(|| expect_refused(setuid(SERVICE)));
            });
            in_thread(|| expect_refused(setuid(SERVICE)));
        });
    }

    // Threat model: A101
    fn settling_outlives_exec(world) {
        with_a_grant(world, || {
            become_alice().unwrap();
            assert!(!change_after_exec());
        });
        in_child(|| {
            become_service(FREE);
            become_alice().unwrap();
            assert!(change_after_exec());
        });
    }

    // Threat model: A101
    fn settling_outlives_exec_by_a_thread(world) {
        // The shell succeeds if the change in it fails.
        let script = format!("! setpriv --reuid={BOB} true 2>/dev/null");
        with_a_grant(world, || {
            become_alice().unwrap();
            exec_by_a_thread(&script);
        });
        in_child(|| {
            become_service(FREE);
            become_alice().unwrap();
            exec_by_a_thread(&format!("setpriv --reuid={BOB} true"));
        });
    }

    // Threat model: A110
    fn credentials_of_others_are_not_sent(world) {
        let before_capability = world.count(Reason::Capability);
        with_a_grant(world, || {
            expect_refused(claim(ALICE));
            claim(SERVICE).unwrap();
        });
        assert!(world.count(Reason::Capability) > before_capability);
        in_child(|| {
            become_service(FREE);
            claim(ALICE).unwrap();
        });
    }

    // Threat model: A110
    fn a_service_makes_no_user_namespace(world) {
        let before_user_namespace = world.count(Reason::UserNamespace);
        with_a_grant(world, || expect_refused(own_namespace()));
        assert_eq!(world.count(Reason::UserNamespace) - before_user_namespace, 1);
        in_child(|| {
            become_service(FREE);
            own_namespace().unwrap();
        });
    }

    // Threat model: A110
    fn capabilities_but_binding_a_port_are_refused(world) {
        in_child(|| {
            become_service(SERVICE);
            std::net::TcpListener::bind("127.0.0.1:80").unwrap();
        });
        with_a_grant(world, || {
            become_alice().unwrap();
            std::net::TcpListener::bind("127.0.0.1:80").unwrap_err();
        });
        in_child(|| {
            become_service(FREE);
            become_alice().unwrap();
            std::net::TcpListener::bind("127.0.0.1:80").unwrap();
        });
    }

    // Threat model: A110
    fn programs_that_give_privileges_give_none(world) {
        let before_execution = world.count(Reason::Execution);
        let plain = program("plain", 0o755);
        let setuid_root = program("setuid", 0o4755);
        let setgid_root = program("setgid", 0o2755);
        let capable = program("capable", 0o755);
        // VFS_CAP_REVISION_2, effective; permitted: CAP_DAC_OVERRIDE.
        let value: [u32; 5] = [0x0200_0001, 2, 0, 0, 0];
        let bytes: Vec<u8> = value.iter().flat_map(|word| word.to_le_bytes()).collect();
        rustix::fs::setxattr(
            &capable,
            "security.capability",
            &bytes,
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
        let attempts = || {
            assert!(execute(&plain).unwrap());
            for path in [&setuid_root, &setgid_root, &capable] {
                expect_refused(execute(path));
            }
        };
        in_child(|| {
            become_service(SERVICE);
            attempts();
        });
        with_a_grant(world, || {
            become_alice().unwrap();
            attempts();
        });
        assert_eq!(world.count(Reason::Execution) - before_execution, 6);
        in_child(|| {
            become_service(FREE);
            for path in [&plain, &setuid_root, &setgid_root, &capable] {
                assert!(execute(path).unwrap());
            }
        });
    }

    // Threat model: A110
    fn io_uring_gives_no_former_credentials_back(world) {
        let before_io_uring_credentials = world.count(Reason::IoUringCredentials);
        // A process that has used a ring itself does not settle, so this ring is inherited.
        let ring = Ring::new(0).unwrap();
        with_a_grant(world, || {
            let service = ring.register_personality();
            become_alice().unwrap();
            assert_eq!(ring.submit(NOP, -1, &mut [], service), -libc::EPERM);
            assert_eq!(ring.submit(NOP, -1, &mut [], 0), 0);
            let own = ring.register_personality();
            assert_eq!(ring.submit(NOP, -1, &mut [], own), 0);
        });
        assert_eq!(world.count(Reason::IoUringCredentials) - before_io_uring_credentials, 1);
        in_child(|| {
            become_service(SERVICE);
            let ring = Ring::new(0).unwrap();
            let service = ring.register_personality();
            assert_eq!(ring.submit(NOP, -1, &mut [], service), 0);
        });
        in_child(|| {
            become_service(FREE);
            let ring = Ring::new(0).unwrap();
            let free = ring.register_personality();
            become_alice().unwrap();
            assert_eq!(ring.submit(NOP, -1, &mut [], free), 0);
        });
    }

    // Threat model: A110
    fn a_service_makes_no_io_uring_thread(world) {
        let before_io_uring_credentials = world.count(Reason::IoUringCredentials);
        in_child(|| {
            become_service(SERVICE);
            expect_refused(Ring::new(SETUP_SQPOLL).map(drop));
        });
        assert_eq!(world.count(Reason::IoUringCredentials) - before_io_uring_credentials, 1);
        in_child(|| {
            become_service(FREE);
            Ring::new(SETUP_SQPOLL).unwrap();
        });
    }

    // Threat model: A97
    fn nothing_is_granted_to_a_process_that_is_gone(world) {
        let gone = process(|_| {});
        let pidfd = gone.pidfd.try_clone().unwrap();
        gone.done();
        world.ownership.grant(pidfd.as_fd(), &alice()).unwrap_err();
        assert_eq!(world.ownership.state(pidfd.as_fd()).unwrap(), ProcessState::None);
    }
}
