package controller

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/intents"
)

// restLook is the pause after which a claim that rests is compared with its secret and its VolumeAttributesClass, which are
// not watched.
const restLook = time.Minute

// rest is the pause of a claim after a request that the driver has called invalid. The zero value is over.
type rest struct {
	// what identifies all that went into the request.
	what fingerprint
	// until is when the request is tried again even if nothing has changed.
	until time.Time
}

// fingerprint identifies all that a request is made of and that users can change. It holds no secret.
type fingerprint [sha256.Size]byte

// inputs is what a fingerprint is made from.
type inputs struct {
	claim               *corev1.PersistentVolumeClaim
	class               *storagev1.StorageClass
	secrets, attributes map[string]string
}

// fingerprint returns the fingerprint of the inputs.
func (i inputs) fingerprint() fingerprint {
	text, err := json.Marshal(struct {
		Spec                corev1.PersistentVolumeClaimSpec
		Annotations         map[string]string
		Class               [2]string
		Secrets, Attributes map[string]string
	}{i.claim.Spec, i.claim.Annotations, [2]string{string(i.class.UID), i.class.ResourceVersion}, i.secrets, i.attributes})
	if err != nil {
		text = []byte(i.claim.ResourceVersion + "/" + i.class.ResourceVersion)
	}
	return sha256.Sum256(text)
}

// fingerprintOf returns the fingerprint of the request of an intent.
func fingerprintOf(intent intents.Intent) fingerprint {
	return inputs{
		claim: intent.Spec.Claim, class: intent.Spec.Class, secrets: intent.Secrets, attributes: intent.Spec.MutableParameters,
	}.fingerprint()
}

// restLeft returns how long the claim rests before it is looked at again: not at all once a request would be another one.
func (c *Controller) restLeft(ctx context.Context, s claimState) time.Duration {
	resting := c.claimRecords.get(s.claim.UID).rest
	left := max(0, resting.until.Sub(s.now))
	if left == 0 {
		return 0
	}
	spec, err := c.classSpec(s)
	if err != nil {
		return 0
	}
	now := inputs{claim: s.claim, class: s.class}
	// What cannot be read now cannot be in a better request either: the rest goes on.
	if now.secrets, err = c.secrets(ctx, spec.Secrets.Provision); err != nil {
		return min(left, restLook)
	}
	if now.attributes, err = c.mutableParameters(ctx, spec.AttributesClass); err != nil {
		return min(left, restLook)
	}
	switch {
	case now.fingerprint() != resting.what:
		return 0
	case spec.Secrets.Provision != nil || spec.AttributesClass != "":
		return min(left, restLook)
	}
	return left
}
