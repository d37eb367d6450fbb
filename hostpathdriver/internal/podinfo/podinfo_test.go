package podinfo

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	full := Info{Name: "web-0", Namespace: "shop", UID: "u1", ServiceAccount: "web", Ephemeral: true}
	cases := map[string]struct {
		reason string
		in     map[string]string
		want   Info
		bad    bool
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
		"TokensUntouched": {reason: "tokens are not parsed", in: map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": "{}"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(c.in)
			if (err != nil) != c.bad {
				t.Fatalf("%s: error %v, want one: %t", c.reason, err, c.bad)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
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
