package controller

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/provisioner/internal/intents"
	"github.com/longshore-csi/longshore/provisioner/internal/params"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// recoverIntent opens the intent that a claim has a record of. Anyone who may write the claim may have written the record: it serves for a volume
// that has the claim's name, and with the secret that the class names. Without the class, the secret must be in the claim's namespace.
func (c *Controller) recoverIntent(ctx context.Context, claim *corev1.PersistentVolumeClaim) (intents.Intent, bool) {
	intent, ok := c.cfg.Intents.Recover(ctx, claim)
	if !ok {
		return intents.Intent{}, false
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeName, intent.Spec.Name)
	name := intent.Spec.Name
	if name != c.cfg.Settings.Naming.Name(claim.UID) && !strings.Contains(name, string(claim.UID)) {
		logger.Error(nil, "Record on a claim is dropped: its volume has not the name of one for this claim")
		if err := c.cfg.Intents.Close(ctx, claim.UID); err != nil {
			logger.Error(err, "Record on a claim could not be dropped")
		}
		return intents.Intent{}, false
	}
	if intent.Spec.Secrets.Provision == nil {
		return intent, true
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
	return intent, true
}
