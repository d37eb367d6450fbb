package certificate

import (
	"crypto/tls"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/snapshotmetadata/internal/certtest"
)

// TestRenewal uses each certificate as soon as both files are good, and the last one until then.
func TestRenewal(t *testing.T) {
	pair := certtest.New(t)
	store, err := Load(Files{Cert: pair.Cert, Key: pair.Key}, klog.Background())
	if err != nil {
		t.Fatal(err)
	}
	get := func() *tls.Certificate {
		t.Helper()
		cert, err := store.Get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	first := get()
	if get() != first {
		t.Error("a file that has not changed is parsed again")
	}
	oldKey, err := os.ReadFile(pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	pair.Renew()
	newKey, err := os.ReadFile(pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	for reason, spoil := range map[string]func() error{
		"the key does not belong to the certificate yet": func() error { return os.WriteFile(pair.Key, oldKey, 0o600) },
		"the key is being written":                       func() error { return os.WriteFile(pair.Key, newKey[:20], 0o600) },
		"the key is gone":                                func() error { return os.Remove(pair.Key) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if get() != first {
			t.Errorf("%s: another certificate is used", reason)
		}
	}
	if err := os.WriteFile(pair.Key, newKey, 0o600); err != nil {
		t.Fatal(err)
	}
	if second := get(); second == first || slices.Equal(second.Certificate[0], first.Certificate[0]) {
		t.Error("the renewed certificate is not used")
	}
}

// TestLoad refuses at the start what cannot be used.
func TestLoad(t *testing.T) {
	pair, other := certtest.New(t), certtest.New(t)
	for reason, tc := range map[string]struct {
		files Files
		words string
	}{
		"no certificate": {Files{Cert: pair.Cert + "x", Key: pair.Key}, "read the TLS certificate: open " + pair.Cert + "x"},
		"no key":         {Files{Cert: pair.Cert, Key: pair.Key + "x"}, "read the TLS key: open " + pair.Key + "x"},
		"other key":      {Files{Cert: pair.Cert, Key: other.Key}, "private key does not match"},
		"exchanged":      {Files{Cert: pair.Key, Key: pair.Cert}, `TLS certificate "` + pair.Key + `" with key`},
	} {
		if _, err := Load(tc.files, klog.Background()); err == nil || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: got %v, want %q", reason, err, tc.words)
		}
	}
}

func TestPolicy(t *testing.T) {
	store := &Store{}
	config, err := Policy{}.Config(store)
	if err != nil || config.MinVersion != tls.VersionTLS12 || config.CipherSuites != nil || config.CurvePreferences != nil {
		t.Errorf("the default is %+v, %v", config, err)
	}
	config, err = Policy{MinVersion: "VersionTLS13", CipherSuites: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, ", Curves: "CurveP256,X25519"}.Config(store)
	if err != nil || config.MinVersion != tls.VersionTLS13 || !slices.Equal(config.CipherSuites, []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}) ||
		!slices.Equal(config.CurvePreferences, []tls.CurveID{tls.CurveP256, tls.X25519}) {
		t.Errorf("got %+v, %v", config, err)
	}
	for _, bad := range []Policy{{MinVersion: "VersionTLS11"}, {CipherSuites: "TLS_RSA_WITH_RC4_128_SHA"}, {Curves: "P256"}} {
		if config, err := bad.Config(store); err == nil {
			t.Errorf("%+v is accepted: %+v", bad, config)
		}
	}
}
