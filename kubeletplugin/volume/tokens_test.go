package volume_test

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikit/redact"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// withTokens is a volume of a driver that wants a token, for a pod that the API server knows.
func (w *world) withTokens(p volume.Publication) volume.Publication {
	w.t.Helper()
	if err := w.api.Apply(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Pod.Namespace, Name: p.Pod.Name, UID: p.Pod.UID},
		Spec:       corev1.PodSpec{ServiceAccountName: p.Pod.ServiceAccount},
	}); err != nil {
		w.t.Fatal(err)
	}
	seconds := int64(600)
	p.Tokens = []storagev1.TokenRequest{{Audience: "vault", ExpirationSeconds: &seconds}}
	return p
}

// published returns the last request to publish a volume.
func (w *world) published() *csi.NodePublishVolumeRequest {
	var last *csi.NodePublishVolumeRequest
	for _, c := range w.driver.Calls() {
		if r, ok := c.Request.(*csi.NodePublishVolumeRequest); ok {
			last = r
		}
	}
	return last
}

// TestTokens is where a driver finds the tokens of the pod: in NodePublishVolume and nowhere else.
func TestTokens(t *testing.T) {
	cases := map[string]struct {
		reason    string
		make      func() volume.Publication
		inSecrets bool
		secret    bool
	}{
		"Context":        {reason: "by default in the volume_context", make: func() volume.Publication { return persistentOf("a", "vol-1") }},
		"Inline":         {reason: "for inline volumes as well", make: func() volume.Publication { return inlineOf("a", "v") }},
		"Secrets":        {reason: "in the secrets if the driver says so", make: func() volume.Publication { return persistentOf("a", "vol-1") }, inSecrets: true},
		"BesidesASecret": {reason: "beside those of the volume", make: func() volume.Publication { return persistentOf("a", "vol-1") }, inSecrets: true, secret: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				p := w.withTokens(tc.make())
				p.TokensInSecrets = tc.inSecrets
				if tc.secret {
					p.PublishSecret = &corev1.SecretReference{Namespace: "ns", Name: "s"}
				}
				w.m.Want(p)
				w.expectPublished(p, true)
				r := w.published()
				inContext, inSecrets := r.GetVolumeContext()[redact.TokensKey], r.GetSecrets()[redact.TokensKey]
				if tc.inSecrets != (inContext == "") || tc.inSecrets != (inSecrets != "") {
					t.Errorf("%s: context has %q, secrets have %q", tc.reason, inContext, inSecrets)
				}
				want := `{"vault":{"token":"token-1-of-sa","expirationTimestamp":"2000-01-01T00:10:00Z"}}`
				if inContext+inSecrets != want {
					t.Errorf("%s: got %q, want %q", tc.reason, inContext+inSecrets, want)
				}
				if tc.secret && r.GetSecrets()["from"] != "ns/s" {
					t.Errorf("%s: the secrets are %v", tc.reason, r.GetSecrets())
				}
				for _, c := range w.driver.Calls() {
					if s, ok := c.Request.(*csi.NodeStageVolumeRequest); ok && strings.Contains(s.String(), "token-") {
						t.Errorf("NodeStageVolume got a token: %v", s)
					}
				}
				w.expectNotOnDisk("token-1")
				w.m.Drop(p.Pod)
				synctest.Wait()
				w.expectClean()
				w.m.Want(p)
				w.expectPublished(p, true)
				if r := w.published().String(); !strings.Contains(r, "token-2") {
					t.Errorf("the token was kept although the pod had no volume: %s", r)
				}
			})
		})
	}
}

func (w *world) expectNotOnDisk(secret string) {
	w.t.Helper()
	err := filepath.WalkDir(string(w.root), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if strings.Contains(string(data), secret) {
			w.t.Errorf("%s contains a token", path)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestTokensFail: without its token a volume is not published, and nothing is left on disk for it; the pod learns why.
func TestTokensFail(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "sa", errors.New("no relationship found"))
	away := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusServiceUnavailable, Message: "away"}}
	event := `a FailedMount: MountVolume.SetUp failed for volume "v" : request token of service account "ns/sa" for audience "vault": `
	for name, tc := range map[string]struct {
		reason string
		err    error
		events []string
	}{
		"Forbidden": {reason: "a node gets its rights soon after the pod", err: forbidden},
		"Away":      {reason: "each failure is an event", err: away, events: []string{event, event}},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				w.api.Inject(kubetest.Fault{Verb: "create", Resource: "serviceaccounts/token", Err: tc.err, Times: 2})
				p := w.withTokens(inlineOf("a", "v"))
				w.m.Want(p)
				w.expectPublished(p, false)
				if left := w.files(); len(left) > 0 {
					t.Errorf("left on disk: %v", left)
				}
				time.Sleep(time.Minute)
				w.expectPublished(p, true)
				w.expectCalls("the driver is called with the token alone", "NodePublishVolume")
				w.expectEvents(tc.reason, tc.events...)
			})
		})
	}
}
