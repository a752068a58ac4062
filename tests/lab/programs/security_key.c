/*
 * A security key for tests: a library in OpenSSH's interface for security keys (sk-api.h, version
 * 10), which ssh-keygen, ssh-agent and ssh-add load where SSH_SK_PROVIDER names it.
 *
 * The private key is the key handle, so that whoever has the handle has the key. Never use it for
 * anything but tests.
 *
 * The folder that SECURITY_KEY names is the device: `counter` counts its signatures; while there
 * is a `hand` it is touched as soon as it asks, else it waits; while there is `touchless` it
 * signs untouched and says so in its flags; `asked` is there once it has been asked.
 */
#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <openssl/x509.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define VERSION 0x000a0000
#define ALGORITHM_ECDSA 0
#define ALGORITHM_ED25519 1
#define FLAG_PRESENT 1
#define ERROR_GENERAL (-1)
#define ERROR_UNSUPPORTED (-2)

struct sk_option;

struct sk_enroll_response {
	uint8_t flags;
	uint8_t *public_key;
	size_t public_key_len;
	uint8_t *key_handle;
	size_t key_handle_len;
	uint8_t *signature;
	size_t signature_len;
	uint8_t *attestation_cert;
	size_t attestation_cert_len;
	uint8_t *authdata;
	size_t authdata_len;
};

struct sk_sign_response {
	uint8_t flags;
	uint32_t counter;
	uint8_t *sig_r;
	size_t sig_r_len;
	uint8_t *sig_s;
	size_t sig_s_len;
};

struct sk_resident_key;

uint32_t sk_api_version(void);
int sk_enroll(uint32_t algorithm, const uint8_t *challenge, size_t challenge_length,
	      const char *application, uint8_t flags, const char *pin, struct sk_option **options,
	      struct sk_enroll_response **response);
int sk_sign(uint32_t algorithm, const uint8_t *data, size_t length, const char *application,
	    const uint8_t *handle, size_t handle_length, uint8_t flags, const char *pin,
	    struct sk_option **options, struct sk_sign_response **response);
int sk_load_resident_keys(const char *pin, struct sk_option **options,
			  struct sk_resident_key ***keys, size_t *count);

static int open_file(const char *name, int flags)
{
	const char *folder = getenv("SECURITY_KEY");
	char path[4096];

	if (!folder)
		return -1;
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return open(path, flags | O_CLOEXEC, 0600);
}

static int is_there(const char *name)
{
	int file = open_file(name, O_RDONLY);

	if (file < 0)
		return 0;
	close(file);
	return 1;
}

static int count(uint32_t *counter)
{
	char text[16] = "";
	int file = open_file("counter", O_RDWR | O_CREAT);
	int failed;

	if (file < 0)
		return -1;
	failed = flock(file, LOCK_EX) || read(file, text, sizeof(text) - 1) < 0;
	*counter = (uint32_t)strtoul(text, NULL, 10) + 1;
	snprintf(text, sizeof(text), "%010u", *counter);
	failed = failed || pwrite(file, text, 10, 0) != 10;
	close(file);
	return failed ? -1 : 0;
}

uint32_t sk_api_version(void)
{
	return VERSION;
}

int sk_enroll(uint32_t algorithm, const uint8_t *challenge, size_t challenge_length,
	      const char *application, uint8_t flags, const char *pin, struct sk_option **options,
	      struct sk_enroll_response **response)
{
	struct sk_enroll_response *made = calloc(1, sizeof(*made));
	EVP_PKEY *key = NULL;
	int length;

	(void)challenge, (void)challenge_length, (void)application, (void)pin, (void)options;
	if (algorithm == ALGORITHM_ECDSA)
		key = EVP_EC_gen("P-256");
	else if (algorithm == ALGORITHM_ED25519)
		key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
	if (!made || !key)
		return ERROR_UNSUPPORTED;
	length = i2d_PrivateKey(key, &made->key_handle);
	if (length <= 0)
		return ERROR_GENERAL;
	made->key_handle_len = (size_t)length;
	if (algorithm == ALGORITHM_ECDSA) {
		/* The point, uncompressed. */
		made->public_key_len = EVP_PKEY_get1_encoded_public_key(key, &made->public_key);
	} else {
		made->public_key_len = 32;
		made->public_key = malloc(32);
		if (!made->public_key ||
		    EVP_PKEY_get_raw_public_key(key, made->public_key, &made->public_key_len) != 1)
			return ERROR_GENERAL;
	}
	made->flags = flags;
	EVP_PKEY_free(key);
	*response = made;
	return made->public_key_len ? 0 : ERROR_GENERAL;
}

/* Both halves of an ECDSA signature in DER, big-endian. */
static int split(const uint8_t *der, size_t length, struct sk_sign_response *made)
{
	ECDSA_SIG *signature = d2i_ECDSA_SIG(NULL, &der, (long)length);

	if (!signature)
		return -1;
	made->sig_r_len = made->sig_s_len = 32;
	made->sig_r = malloc(32);
	made->sig_s = malloc(32);
	return made->sig_r && made->sig_s &&
		       BN_bn2binpad(ECDSA_SIG_get0_r(signature), made->sig_r, 32) == 32 &&
		       BN_bn2binpad(ECDSA_SIG_get0_s(signature), made->sig_s, 32) == 32
		   ? 0
		   : -1;
}

int sk_sign(uint32_t algorithm, const uint8_t *data, size_t length, const char *application,
	    const uint8_t *handle, size_t handle_length, uint8_t flags, const char *pin,
	    struct sk_option **options, struct sk_sign_response **response)
{
	struct sk_sign_response *made = calloc(1, sizeof(*made));
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	/* PROTOCOL.u2f: what a security key signs. */
	uint8_t message[SHA256_DIGEST_LENGTH + 1 + 4 + SHA256_DIGEST_LENGTH];
	uint8_t signature[256];
	size_t signature_length = sizeof(signature);
	EVP_PKEY *key = d2i_AutoPrivateKey(NULL, &handle, (long)handle_length);
	int i, asked;

	(void)pin, (void)options;
	if (!made || !context || !key || count(&made->counter))
		return ERROR_GENERAL;
	asked = open_file("asked", O_WRONLY | O_CREAT);
	if (asked >= 0)
		close(asked);
	made->flags = flags | FLAG_PRESENT;
	while (!is_there("hand")) {
		if (is_there("touchless")) {
			made->flags &= ~FLAG_PRESENT;
			break;
		}
		usleep(10000);
	}
	SHA256((const uint8_t *)application, strlen(application), message);
	message[SHA256_DIGEST_LENGTH] = made->flags;
	for (i = 0; i < 4; i++)
		message[SHA256_DIGEST_LENGTH + 1 + i] = (uint8_t)(made->counter >> (24 - 8 * i));
	SHA256(data, length, message + SHA256_DIGEST_LENGTH + 5);
	if (EVP_DigestSignInit(context, NULL, algorithm == ALGORITHM_ECDSA ? EVP_sha256() : NULL,
			       NULL, key) != 1 ||
	    EVP_DigestSign(context, signature, &signature_length, message, sizeof(message)) != 1)
		return ERROR_GENERAL;
	if (algorithm == ALGORITHM_ECDSA) {
		if (split(signature, signature_length, made))
			return ERROR_GENERAL;
	} else {
		made->sig_r = malloc(signature_length);
		if (!made->sig_r)
			return ERROR_GENERAL;
		memcpy(made->sig_r, signature, signature_length);
		made->sig_r_len = signature_length;
	}
	*response = made;
	return 0;
}

int sk_load_resident_keys(const char *pin, struct sk_option **options,
			  struct sk_resident_key ***keys, size_t *count)
{
	(void)pin, (void)options, (void)keys, (void)count;
	return ERROR_UNSUPPORTED;
}
