package podinfo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	full := Info{Name: "web-0", Namespace: "shop", UID: "u1", ServiceAccount: "web", Ephemeral: true}
	cases := map[string]struct {
		reason string
		in     map[string]string

		secrets map[string]string
		want    Info
		bad     bool
	}{
		"Nothing": {reason: "the driver did not ask for pod information"},
		"Today": {reason: "the kubelet's keys", want: full, in: map[string]string{
			KeyPodName: "web-0", KeyPodNamespace: "shop", KeyPodUID: "u1", KeyServiceAccount: "web", KeyEphemeral: "true",
		}},
		"Seed": {reason: "the keys of the design document", want: full, in: map[string]string{
			"csi.kubernetes.io/pod.name": "web-0", "csi.kubernetes.io/pod.namespace": "shop", "csi.kubernetes.io/pod.uid": "u1",
			"csi.kubernetes.io/serviceAccount.name": "web", "csi.kubernetes.io/ephemeral": "true",
		}},
		"TodayWins":       {reason: "today's key wins over the old one", want: Info{Name: "new"}, in: map[string]string{KeyPodName: "new", "csi.kubernetes.io/pod.name": "old"}},
		"Persistent":      {reason: "false is said", in: map[string]string{KeyEphemeral: "false"}},
		"MissingKey":      {reason: "a missing key means persistent", want: Info{UID: "u1"}, in: map[string]string{KeyPodUID: "u1"}},
		"EmptyEphemeral":  {reason: "so does an empty one", in: map[string]string{KeyEphemeral: ""}},
		"FalseOverOld":    {reason: "today's false is not overruled", in: map[string]string{KeyEphemeral: "false", "csi.kubernetes.io/ephemeral": "true"}},
		"Garbage":         {reason: "never guess: one guess loses data", in: map[string]string{KeyEphemeral: "yes"}, bad: true},
		"ForeignIgnored":  {reason: "other keys are the driver's business", in: map[string]string{"size": "1Gi", "pod.name": "x"}},
		"TokensInContext": {reason: "up to Kubernetes 1.35", in: map[string]string{KeyTokens: "old"}, want: Info{Tokens: "old"}},
		"TokensInSecrets": {reason: "serviceAccountTokenInSecrets", secrets: map[string]string{KeyTokens: "new"}, want: Info{Tokens: "new"}},
		"SecretsWin":      {reason: "who writes volume attributes may write that key", in: map[string]string{KeyTokens: "old"}, secrets: map[string]string{KeyTokens: "new"}, want: Info{Tokens: "new"}},
		"OnlyTokens":      {reason: "pod information is never taken from secrets", secrets: map[string]string{KeyPodName: "x", KeyEphemeral: "true"}},
		"NoOldTokens":     {reason: "tokens came after the old prefix", in: map[string]string{"csi.kubernetes.io/serviceAccount.tokens": "x"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(c.in, c.secrets)
			if (err != nil) != c.bad {
				t.Fatalf("%s: error %v, want one: %t", c.reason, err, c.bad)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestFiles(t *testing.T) {
	want := map[string]string{"pod.name": "web-0", "pod.namespace": "shop", "pod.uid": "u1", "serviceAccount.name": "", "tokens": "{}"}
	got := Info{Name: "web-0", Namespace: "shop", UID: "u1", Tokens: "{}", Ephemeral: true}.Files()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTokensAreWithheld prints them in every way that happens by accident.
func TestTokensAreWithheld(t *testing.T) {
	const secret = "eyJhbGciOi"
	info := Info{Name: "web-0", Tokens: secret}
	asJSON, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	slog.New(slog.NewTextHandler(&logged, nil)).Info("Pod", "info", info, "tokens", info.Tokens)
	for way, text := range map[string]string{
		"%v": fmt.Sprintf("%v", info), "%+v": fmt.Sprintf("%+v", info), "%#v": fmt.Sprintf("%#v", info), "%s": fmt.Sprintf("pod %s", info.Tokens),
		"%q": fmt.Sprintf("%q", info.Tokens), "%x": fmt.Sprintf("%x", info.Tokens), "pointer": fmt.Sprintf("%+v", &info),
		"Errorf": fmt.Errorf("publish %v", info.Tokens).Error(), "JSON": string(asJSON), "slog": logged.String(),
	} {
		if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
			t.Errorf("%s shows it: %s", way, text)
		}
	}
	if Tokens("").String() != "" || Tokens(secret).String() == "" {
		t.Error("it cannot be seen whether there are tokens")
	}
}

func TestString(t *testing.T) {
	if got := (Info{Name: "web-0", Namespace: "shop"}).String(); got != "shop/web-0" {
		t.Errorf("String = %q, want shop/web-0", got)
	}
	if got := (Info{UID: "u1"}).String(); got != "" {
		t.Errorf("String without a name = %q, want nothing", got)
	}
}
