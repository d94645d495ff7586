{{- define "tidegate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "tidegate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "tidegate.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tidegate.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* What pods are selected by; never changes in a release. Takes a list: the context, the component. */}}
{{- define "tidegate.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "tidegate.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Takes a list: the context, the component. */}}
{{- define "tidegate.labels" -}}
{{- $root := index . 0 -}}
{{ include "tidegate.selector" . }}
app.kubernetes.io/part-of: tidegate
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Of pods: without the chart's version, which would replace pods that stay the same. Takes the same list. */}}
{{- define "tidegate.podLabels" -}}
{{ include "tidegate.selector" . }}
app.kubernetes.io/part-of: tidegate
{{- end }}

{{/* Takes a list: the context, the image's values, what follows the version in the default tag. */}}
{{- define "tidegate.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- with $root.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}
{{- else }}:{{ $image.tag | default (printf "%s%s" $root.Chart.AppVersion (index . 2)) }}
{{- end -}}
{{- end }}

{{- define "tidegate.tritonImage" -}}
{{- include "tidegate.image" (list . .Values.triton.image (printf "-%s" .Values.device)) -}}
{{- end }}

{{- define "tidegate.tritonHost" -}}
{{- printf "%s-triton.%s.svc.%s" (include "tidegate.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- end }}

{{- define "tidegate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{/* Takes a list: the context, the component. */}}
{{- define "tidegate.spread" -}}
{{- if (index . 0).Values.topologySpread -}}
topologySpreadConstraints:
{{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    # Of the new version's pods among themselves: those of the old one are about to go.
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels: {{- include "tidegate.selector" $ | nindent 8 }}
{{- end }}
{{- end -}}
{{- end }}

{{/* Where and as what a pod runs. Takes a list: the context, the component's values. */}}
{{- define "tidegate.placement" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- with $root.Values.images.pullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* A setting's value as text: Helm reads 268435456 as a float and would write 2.68435456e+08. */}}
{{- define "tidegate.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end }}

{{/* Resources of a container that computes: with the GPU, if there is one. Takes a list: the context, resources. */}}
{{- define "tidegate.resources" -}}
{{- $values := (index . 0).Values -}}
{{- $resources := deepCopy (index . 1) -}}
{{- if eq $values.device "gpu" -}}
{{- $gpu := dict $values.triton.gpu.resource $values.triton.gpu.count -}}
{{- $_ := set $resources "limits" (merge $gpu ($resources.limits | default dict)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}

{{/* Seconds until a rollout counts as stuck: Triton may first build an engine, and a gateway is ready after Triton. */}}
{{- define "tidegate.patience" -}}
{{- add .Values.triton.startupSeconds (eq .Values.engines.mode "none" | ternary 300 .Values.engines.activeDeadlineSeconds) -}}
{{- end }}

{{- define "tidegate.claim" -}}
{{- .Values.modelRepository.claim.existing | default (printf "%s-models" (include "tidegate.fullname" .)) -}}
{{- end }}
