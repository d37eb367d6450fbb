package controller

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/intents"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// TestForgedRecord reads records that anyone who may write the claim could have written.
func TestForgedRecord(t *testing.T) {
	cases := map[string]struct {
		reason string
		// name is that of the volume, secret the namespace of its secret; parameters are those of the class, nil for no class.
		name, secret string
		parameters   map[string]string
		want         bool
		wantSecret   string
	}{
		"Own":           {reason: "A record without a secret is used.", name: "pvc-uid-1", parameters: map[string]string{}, want: true},
		"OtherPrefix":   {reason: "--volume-name-prefix was changed meanwhile.", name: "old-uid-1", parameters: map[string]string{}, want: true},
		"OtherVolume":   {reason: "The volume of another claim must not be touched.", name: "pvc-uid-2", parameters: map[string]string{}},
		"ForeignSecret": {reason: "The class names no secret.", name: "pvc-uid-1", secret: "kube-system", parameters: map[string]string{}, want: true},
		"SecretOfClass": {
			reason: "The class names the secret, whatever the record says.", name: "pvc-uid-1", secret: "kube-system",
			parameters: map[string]string{"csi.storage.k8s.io/provisioner-secret-name": "creds", "csi.storage.k8s.io/provisioner-secret-namespace": "storage"},
			want:       true, wantSecret: "storage/creds",
		},
		"ClassGone":       {reason: "Without the class the owner of the claim may have access to the secret of the own namespace.", name: "pvc-uid-1", secret: "team", want: true, wantSecret: "team/token"},
		"ClassGoneSecret": {reason: "And need not to another one.", name: "pvc-uid-1", secret: "kube-system", want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				if tc.parameters != nil {
					class := newClass()
					class.ResourceVersion, class.Parameters = "", tc.parameters
					r.apply(class)
				}
				claim := newClaim()
				claim.ResourceVersion = ""
				r.apply(claim)
				store := intents.NewClaims(r.cluster.Client().PersistentVolumeClaims, "")
				r.cfg.Intents = store
				forged := intents.Intent{Spec: volume.Spec{Name: tc.name, Claim: r.claim()}, Request: &csi.CreateVolumeRequest{Name: tc.name}}
				if tc.secret != "" {
					forged.Spec.Secrets.Provision = &corev1.SecretReference{Namespace: tc.secret, Name: "token"}
				}
				if err := intents.NewClaims(r.cluster.Client().PersistentVolumeClaims, "").Open(quiet(t), forged); err != nil {
					t.Fatal(err)
				}
				r.watchesCatchUp()
				key := keyOf(r.claim())
				if err := r.recoverRecord(quiet(t), key); err != nil {
					t.Fatal(err)
				}
				s := r.claimState(quiet(t), key)
				if got := s.intent != nil; got != tc.want || intents.Recorded(r.claim()) != tc.want {
					t.Fatalf("%s\nintent %t, recorded %t, want %t", tc.reason, got, intents.Recorded(r.claim()), tc.want)
				}
				if !tc.want {
					return
				}
				again, _ := store.Get("uid-1")
				for _, ref := range []*corev1.SecretReference{s.intent.Spec.Secrets.Provision, again.Spec.Secrets.Provision} {
					got := ""
					if ref != nil {
						got = ref.Namespace + "/" + ref.Name
					}
					if got != tc.wantSecret {
						t.Errorf("%s\nsecret %q, want %q", tc.reason, got, tc.wantSecret)
					}
				}
			})
		})
	}
}

// TestRecordThatIsGoneIsNotRecovered has a cache show a record that another process has dropped, with its claim or from it.
func TestRecordThatIsGoneIsNotRecovered(t *testing.T) {
	away := errors.New("the API server is away")
	for name, tc := range map[string]struct {
		reason  string
		change  func(t *testing.T, r *rig, store *intents.Claims)
		want    bool
		wantErr error
	}{
		"There":   {reason: "The record is there.", change: func(*testing.T, *rig, *intents.Claims) {}, want: true},
		"Dropped": {reason: "The process before has dropped it.", change: func(t *testing.T, _ *rig, store *intents.Claims) { t.Helper(); closeIntent(t, store) }},
		"ClaimGone": {reason: "The claim went with it.", change: func(t *testing.T, r *rig, store *intents.Claims) {
			t.Helper()
			if err := r.cluster.Remove("persistentvolumeclaims", "team", "data"); err != nil {
				t.Fatal(err)
			}
			closeIntent(t, store)
		}},
		"Unreachable": {reason: "It is not known: the volume is not made again meanwhile.", wantErr: away, change: func(_ *testing.T, r *rig, _ *intents.Claims) {
			r.cluster.Inject(kubetest.Fault{Verb: "get", Resource: "persistentvolumeclaims", Err: away})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.apply(newClass())
				claim := newClaim()
				claim.ResourceVersion = ""
				r.apply(claim)
				before := intents.NewClaims(r.cluster.Client().PersistentVolumeClaims, "")
				if err := before.Open(quiet(t), intents.Intent{Spec: volume.Spec{Name: "pvc-uid-1", Claim: r.claim()}, Request: &csi.CreateVolumeRequest{Name: "pvc-uid-1"}}); err != nil {
					t.Fatal(err)
				}
				r.cfg.Intents = intents.NewClaims(r.cluster.Client().PersistentVolumeClaims, "")
				r.watchesCatchUp()
				key := keyOf(r.claim())
				r.deaf("persistentvolumeclaims")
				tc.change(t, r, before)
				if err := r.recoverRecord(quiet(t), key); !errors.Is(err, tc.wantErr) {
					t.Errorf("%s\nerror %v, want %v", tc.reason, err, tc.wantErr)
				}
				if _, got := r.cfg.Intents.Get(key.UID); got != tc.want {
					t.Errorf("%s\nintent %t, want %t", tc.reason, got, tc.want)
				}
			})
		})
	}
}

// closeIntent closes the intent of the claim.
func closeIntent(t *testing.T, store *intents.Claims) {
	t.Helper()
	if err := store.Close(quiet(t), "uid-1"); err != nil {
		t.Fatal(err)
	}
}
