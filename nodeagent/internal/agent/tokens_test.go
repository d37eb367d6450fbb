package agent

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikit/redact"
	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// tokens lists the tokens of all requests to publish a volume, in their order.
func (c *cluster) tokens() []string {
	var all []string
	for _, call := range c.driver.Calls() {
		if r, ok := call.Request.(*csi.NodePublishVolumeRequest); ok {
			all = append(all, r.GetVolumeContext()[redact.TokensKey]+r.GetSecrets()[redact.TokensKey])
		}
	}
	return all
}

// TestServiceAccountTokens: the driver gets a token that is bound to the pod, and nobody else sees it.
func TestServiceAccountTokens(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	d := csiDriver(false)
	d.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}, {Audience: "store"}}
	d.Spec.ServiceAccountTokenInSecrets = on(true)
	c.apply(d, claim(), persistentVolume())
	c.start()
	c.apply(podWith("a", claimSource()))
	c.eventually("the pod to run", c.running("a"))
	got := c.tokens()
	if len(got) != 1 || !strings.Contains(got[0], `"store":{"token":"token-`) || !strings.Contains(got[0], `"vault":{"token":"token-`) {
		t.Errorf("driver got %q, want a token for each audience", got)
	}
	for what, obj := range map[string]any{"state": c.agent.State(), "events": c.api.Objects("events"), "pod": c.pod("a"), "node": c.node()} {
		data, err := json.Marshal(obj)
		if err != nil || bytes.Contains(data, []byte("token-")) {
			t.Errorf("%s has the token: %s, %v", what, data, err)
		}
	}
	c.deletePod("a", 0)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
}
