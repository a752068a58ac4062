//! A server that asks the kernel who is at its local socket: no `identify`, but a program that is the user.

use usher_lab::eventually;

use crate::reading::Outcome;

const HBA: &str = "local all all peer\n";

#[test]
fn postgresql_knows_each_user_by_the_kernel() -> Outcome {
    let policy = include_str!("../../../../examples/identify/database.policy");
    let policy = policy.replace("staff", "mail");
    let mail = crate::topology_with(&policy, &crate::client("database", 5432))?;
    let host = &mail.mailhost;
    let data = "/var/lib/app/data";
    let programs = "ls -d /usr/lib/postgresql/*/bin | tail -1";
    let programs = host.run(["sh", "-c", programs])?.stdout.trim().to_owned();
    let initdb = format!("{programs}/initdb");
    host.run_as("app", [&initdb, "--no-sync", "--auth", "peer", "-D", data])?;
    host.write(format!("{data}/pg_hba.conf"), HBA)?;
    let folder = "/run/postgresql";
    host.run(["install", "-d", "-o", "app", "-m", "755", folder])?;
    let server = [
        &format!("{programs}/postgres"),
        "-D",
        data,
        "-k",
        folder,
        "-h",
        "",
    ];
    let _server = host.command(server).user("app").spawn()?;
    let statement = |database: &str, text: &str| {
        let psql = ["psql", "-h", folder, "-d", database, "-c", text];
        host.command(psql).user("app").run()
    };
    eventually("the database is there", || {
        Ok(statement("postgres", "select 1")?.status.success())
    })?;
    statement(
        "postgres",
        "create role alice login; create role bob login;",
    )?;

    let ask = |user: &str, role: &str| {
        let psql = [
            "psql",
            "-h",
            "127.0.1.1",
            "-U",
            role,
            "-d",
            "postgres",
            "-At",
            "-c",
            "select current_user",
        ];
        mail.laptop.command(psql).user(user).run()
    };
    for user in ["alice", "bob"] {
        let answer = ask(user, user)?;
        assert_eq!(answer.stdout, format!("{user}\n"), "{answer:?}");
    }
    // She has no password to guess: the kernel says who she is.
    let claimed = ask("alice", "bob")?;
    assert!(!claimed.status.success(), "{claimed:?}");
    let reason = "Peer authentication failed for user \"bob\"";
    assert!(claimed.stderr.contains(reason), "{claimed:?}");
    Ok(())
}
