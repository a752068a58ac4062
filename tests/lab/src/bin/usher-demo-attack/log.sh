login='Login: user=<alice>, method=PLAIN, rip=192.0.2.66'
# As dovecot's own processes speak to its log process: first the prefix of another service, then a line.
printf '\001\010%d prefix=imap-login: \n\001\002%d %s\n' $PPID $PPID "$login" >&9
for file in /var/log/dovecot.log /var/log/usher/* /var/lib/usher/*/*; do
    echo "imap-login: Info: $login" >>$file
done
