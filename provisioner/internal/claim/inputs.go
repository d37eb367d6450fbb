package claim

import (
	"crypto/sha256"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// This file says what the work on a key depends on: as long as that stays the same, a key that has failed waits for its backoff to end
// (reconcile.Config.Inputs). Nothing that the provisioner writes before it fails may be part of it.

// claimInputs returns what users, the scheduler and administrators can change about a claim that gets no volume. A source, a node or a PersistentVolume that the
// claim waits for wakes it.
func (c *Controller) claimInputs(key claimKey) any {
	claim, ok := c.claim(key)
	if !ok {
		return nil
	}
	class := ""
	if found, ok := c.view.Class(view.ClassName(claim)); ok {
		class = string(found.UID) + "/" + found.ResourceVersion
	}
	return [...]any{claim.UID, leaving(claim), digestOf(claim), class}
}

// digestOf returns the digest of what a user can change in a claim.
func digestOf(claim *corev1.PersistentVolumeClaim) [sha256.Size]byte {
	annotations := make(map[string]string, len(claim.Annotations))
	for name, value := range claim.Annotations {
		if name != volume.AnnInProgress {
			annotations[name] = value
		}
	}
	text, err := json.Marshal([]any{claim.Spec, annotations})
	if err != nil { // which cannot happen with what the API server has sent
		text = []byte(claim.ResourceVersion)
	}
	return sha256.Sum256(text)
}
