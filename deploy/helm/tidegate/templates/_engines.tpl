{{/* The container that builds and certifies engines into the model repository. */}}
{{- define "tidegate.engines" -}}
name: engines
image: {{ include "tidegate.image" (list . .Values.engines.image "") }}
imagePullPolicy: {{ .Values.images.pullPolicy }}
args:
  - /opt/tidegate/venv/bin/python
  - -m
  - build_engines
  {{- toYaml .Values.engines.order | nindent 2 }}
  - --repository
  - {{ include "tidegate.repository" . }}
  - --work
  - /volume/work
resources: {{- include "tidegate.resources" (list . .Values.engines.resources) | nindent 2 }}
securityContext: {{- include "tidegate.containerSecurity" . | nindent 2 }}
volumeMounts:
  - { name: models, mountPath: /volume }
  - { name: tmp, mountPath: /tmp }
{{- end }}

{{/* User, group and seccomp of pods with the model repository. */}}
{{- define "tidegate.tritonSecurity" -}}
runAsNonRoot: true
{{ toYaml .Values.triton.podSecurityContext }}
# Else every file of the volume is looked at before each start.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{/* Where Triton finds its models. */}}
{{- define "tidegate.repository" -}}
{{- eq .Values.modelRepository.kind "image" | ternary "/models" (printf "/volume/%s" .Values.modelRepository.folder) -}}
{{- end }}

{{- define "tidegate.modelsVolume" -}}
- name: models
{{- if eq .Values.modelRepository.kind "claim" }}
  persistentVolumeClaim: { claimName: {{ include "tidegate.claim" . }} }
{{- else }}
  emptyDir: { sizeLimit: {{ .Values.modelRepository.size }} }
{{- end }}
{{- end }}
