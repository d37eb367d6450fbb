package controller

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/params"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

func TestRestLeft(t *testing.T) {
	cases := map[string]struct {
		reason string
		other  bool
		after  time.Duration
		want   time.Duration
	}{
		"Begin":   {reason: "The rest is as long as it was set.", want: 5 * time.Minute},
		"Middle":  {reason: "It ends at a moment, not after a number of looks.", after: 4 * time.Minute, want: time.Minute},
		"Over":    {reason: "It ends.", after: 6 * time.Minute},
		"Changed": {reason: "It ends when the request would be another one.", other: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				now := time.Now()
				s := claimState{claim: newClaim(), class: newClass(), now: now.Add(tc.after)}
				if got := r.restLeft(quiet(t), s); got != 0 {
					t.Errorf("a claim without a rest rests for %v", got)
				}
				resting := rest{what: inputs{claim: s.claim, class: s.class}.fingerprint(), until: now.Add(5 * time.Minute)}
				r.claimRecords.change("uid-1", func(record *claimRecord) { record.rest = resting })
				if tc.other {
					s.claim = newClaim()
					s.claim.Annotations["a"] = "b"
				}
				if got := r.restLeft(quiet(t), s); got != tc.want {
					t.Errorf("%s\nleft %v, want %v", tc.reason, got, tc.want)
				}
			})
		})
	}
}

func TestFingerprint(t *testing.T) {
	start := func() inputs {
		return inputs{claim: newClaim(), class: newClass(), secrets: map[string]string{"user": "ann"}, attributes: map[string]string{"iops": "10"}}
	}
	cases := map[string]struct {
		reason string
		change func(*inputs)
		same   bool
	}{
		"Nothing":    {reason: "The same inputs have one fingerprint.", change: func(*inputs) {}, same: true},
		"Labels":     {reason: "What is no part of a request changes nothing.", change: func(i *inputs) { i.claim.ResourceVersion, i.claim.Labels = "8", map[string]string{"a": "b"} }, same: true},
		"Size":       {reason: "The size is part of it.", change: func(i *inputs) { i.claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi") }},
		"Node":       {reason: "So is the selected node.", change: func(i *inputs) { i.claim.Annotations[view.AnnSelectedNode] = "n" }},
		"Class":      {reason: "So is the class.", change: func(i *inputs) { i.class.UID = "class-2" }},
		"Secret":     {reason: "So are the values of the secret.", change: func(i *inputs) { i.secrets["user"] = "bob" }},
		"Attributes": {reason: "So are the parameters of the VolumeAttributesClass.", change: func(i *inputs) { i.attributes["iops"] = "20" }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			i := start()
			tc.change(&i)
			if got := i.fingerprint() == start().fingerprint(); got != tc.same {
				t.Errorf("%s\nsame fingerprint: %v, want %v", tc.reason, got, tc.same)
			}
		})
	}
}

// TestRepairedSecretWaitedForTheRestToEnd has the driver call requests invalid until the secret, or the VolumeAttributesClass,
// of the claim is repaired: the volume must be there soon after. A claim used to rest for five minutes whatever was
// repaired there.
func TestRepairedSecretWaitedForTheRestToEnd(t *testing.T) {
	secret := func(user string) kube.Object {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "s"}, Data: map[string][]byte{"user": []byte(user)}}
	}
	attributes := func(tier string) kube.Object {
		return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: driver, Parameters: map[string]string{"tier": tier}}
	}
	for name, repaired := range map[string]kube.Object{"Secret": secret("bob"), "AttributesClass": attributes("high"), "Nothing": secret("ann")} {
		t.Run(name, func(t *testing.T) {
			onFlow(t, func(t *testing.T, g *chaos) {
				class, claim, gold := newClass(), newClaim(), "gold"
				class.UID, class.ResourceVersion = "class-2", ""
				class.Parameters = map[string]string{params.Prefix + "provisioner-secret-name": "s", params.Prefix + "provisioner-secret-namespace": "team"}
				claim.ResourceVersion, claim.Spec.VolumeAttributesClassName = "", &gold
				g.remove("storageclasses", "", "fast")
				g.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.InvalidArgument, Times: 1})
				for _, obj := range []kube.Object{class, secret("ann"), attributes("low"), claim} {
					g.apply(obj)
					time.Sleep(time.Second) // classes and claims have watches of their own
				}
				time.Sleep(10 * time.Second)
				g.apply(repaired)
				time.Sleep(2 * time.Minute)
				want := 1
				if name == "Nothing" {
					want = 0
				}
				if got := len(g.volumes()); got != want {
					t.Errorf("%d volumes two minutes after the repair, want %d", got, want)
				}
				time.Sleep(5 * time.Minute)
				if got := len(g.volumes()); got != 1 {
					t.Errorf("%d volumes after the rest, want 1", got)
				}
			})
		})
	}
}
