package leader

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"
)

// Two pods in the network of one host had the host's name as their identity, and both renewed the Lease as their own.
func TestPodsOfOneHostHaveTheirOwnIdentity(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	claims := func(payload string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2lnbmF0dXJl"
	}
	cases := map[string]struct {
		reason     string
		env, token string
		want       string
	}{
		"Token": {
			reason: "a pod without further configuration",
			token:  claims(`{"sub":"system:serviceaccount:ns:a","kubernetes.io":{"namespace":"ns","pod":{"name":"provisioner-0","uid":"1"}}}`), want: "provisioner-0",
		},
		"Env": {
			reason: "the downward API wins", env: "provisioner-1",
			token: claims(`{"kubernetes.io":{"pod":{"name":"provisioner-0"}}}`), want: "provisioner-1",
		},
		"NoPod":       {reason: "a token that belongs to no pod", token: claims(`{"kubernetes.io":{"namespace":"ns"}}`), want: host},
		"NoToken":     {reason: "not in a pod", want: host},
		"NotThree":    {reason: "not a token", token: "opaque", want: host},
		"NotBase64":   {reason: "not a token", token: "a.*.c", want: host},
		"NotClaims":   {reason: "not a token", token: claims(`[]`), want: host},
		"NameOfAnInt": {reason: "not a token", token: claims(`{"kubernetes.io":{"pod":{"name":1}}}`), want: host},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "token")
			if tc.token != "" {
				if err := os.WriteFile(file, []byte(tc.token), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := identity(tc.env, file); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
