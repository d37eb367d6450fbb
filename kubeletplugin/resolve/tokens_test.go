package resolve

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// TestTokenRequests: which tokens a driver gets, and where, is in its CSIDriver object.
func TestTokenRequests(t *testing.T) {
	requests := []storagev1.TokenRequest{{Audience: "vault", ExpirationSeconds: ptr(int64(600))}, {}}
	cases := map[string]struct {
		reason    string
		driver    *storagev1.CSIDriver
		want      []storagev1.TokenRequest
		inSecrets bool
	}{
		"None":    {reason: "none by default", driver: csiDriver()},
		"Context": {reason: "in the volume_context", driver: csiDriver(func(s *storagev1.CSIDriverSpec) { s.TokenRequests = requests }), want: requests},
		"Secrets": {reason: "in the secrets", driver: csiDriver(func(s *storagev1.CSIDriverSpec) {
			s.TokenRequests, s.ServiceAccountTokenInSecrets = requests, ptr(true)
		}), want: requests, inSecrets: true},
		"NoObject": {reason: "no CSIDriver object"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			sources := []corev1.VolumeSource{byClaim(), inline()}
			if tc.driver == nil {
				sources = sources[:1] // inline volumes need the object
			}
			for _, source := range sources {
				got, problems := resolver(kubetest.New(claim(), pv()), tc.driver).Pod(t.Context(), pod(source))
				if len(problems) > 0 {
					t.Fatal(problems)
				}
				if diff := cmp.Diff(tc.want, got[0].Tokens); diff != "" || got[0].TokensInSecrets != tc.inSecrets {
					t.Errorf("%s: in secrets %t (-want +got):\n%s", tc.reason, got[0].TokensInSecrets, diff)
				}
			}
		})
	}
}
