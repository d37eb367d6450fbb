package controller

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/provisioner/internal/params"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// recoverRecord opens the intent that a claim has a record of, unless one is open. The claim is read from the server: the cache may still show a record
// that is gone, and a volume that was made again for it would have none.
func (c *Controller) recoverRecord(ctx context.Context, key claimKey) error {
	cached, ok := c.claim(key)
	if _, open := c.cfg.Intents.Get(key.UID); open || !ok || !c.recorded(cached) {
		return nil
	}
	callCtx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	live, err := c.cfg.Kube.PersistentVolumeClaims(key.Namespace).Get(callCtx, key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && live.UID != key.UID:
		return nil
	case err != nil:
		return fmt.Errorf("get claim %s to go on with its volume: %w", klog.KObj(cached), err)
	}
	if c.recorded(live) {
		c.recoverIntent(ctx, live)
		return nil
	}
	c.view.Claims.Remember(live)
	return nil
}

// recoverIntent opens the intent of a record. Anyone who may write the claim may have written the record: it serves for a volume
// that has the claim's name, and with the secret that the class names. Without the class, the secret must be in the claim's namespace.
func (c *Controller) recoverIntent(ctx context.Context, claim *corev1.PersistentVolumeClaim) {
	intent, ok := c.cfg.Intents.Recover(ctx, claim)
	if !ok {
		return
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeName, intent.Spec.Name)
	name := intent.Spec.Name
	if name != c.cfg.Settings.Naming.Name(claim.UID) && !strings.Contains(name, string(claim.UID)) {
		logger.Error(nil, "Record on a claim is dropped: its volume has not the name of one for this claim")
		if err := c.cfg.Intents.Close(ctx, claim.UID); err != nil {
			logger.Error(err, "Record on a claim could not be dropped")
		}
		return
	}
	if intent.Spec.Secrets.Provision == nil {
		return
	}
	switch class, known := c.view.Class(view.ClassName(claim)); {
	case known:
		intent.Spec.Secrets.Provision = nil
		if parsed, err := params.Parse(class.Parameters); err == nil {
			intent.Spec.Secrets.Provision, _ = parsed.ResolveProvision(params.Values{
				PVName: name, ClaimName: claim.Name, ClaimNamespace: claim.Namespace, ClaimAnnotations: claim.Annotations,
			})
		}
	case intent.Spec.Secrets.Provision.Namespace != claim.Namespace:
		logger.Info("Secret of a record on a claim is not used: it is in another namespace, and the StorageClass does not exist")
		intent.Spec.Secrets.Provision = nil
	}
	_ = c.cfg.Intents.Update(ctx, intent) // it was just opened
}
